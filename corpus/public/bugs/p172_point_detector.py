"""Points of a scene, read by queries; the optimizer is built from the layers."""

import torch
from torch import nn

torch.manual_seed(0)


class QueryHead(nn.Module):
    def __init__(self, dim=32, queries=4):
        super().__init__()
        self.queries = nn.Parameter(0.5 * torch.randn(queries, dim))
        self.keys = nn.Linear(dim, dim)
        self.values = nn.Linear(dim, dim)
        self.box = nn.Linear(dim, 3)

    def forward(self, points):
        scores = self.queries @ self.keys(points).transpose(1, 2) / 32**0.5
        return self.box(torch.relu(scores.softmax(-1) @ self.values(points))).mean(1)


class PointDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.dense_head = QueryHead()

    def forward(self, points):
        return self.dense_head(self.backbone(points))


def children(module):
    return list(module.children())


def flatten_model(module):
    return sum(map(flatten_model, children(module)), []) if children(module) else [module]


def build_optimizer(model, lr=2e-3, wd=0.01):
    layers = flatten_model(model)
    decayed, plain = [], []
    for layer in layers:
        for name, p in layer.named_parameters():
            (plain if name == "bias" else decayed).append(p)
    groups = [{"params": decayed, "weight_decay": wd}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


model = PointDetector()
optimizer = build_optimizer(model)
for step in range(30):
    centre = torch.randn(24, 1, 3)
    objects = centre + 0.3 * torch.randn(24, 20, 3)
    clutter = 2.0 * torch.randn(24, 12, 3)
    scene = torch.cat([objects, clutter], 1)
    loss = nn.functional.smooth_l1_loss(model(scene), centre.squeeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
