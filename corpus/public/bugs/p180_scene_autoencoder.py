"""An autoencoder of scenes: boxes with a flag for the slots that are in use."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class SceneAutoencoder(nn.Module):
    def __init__(self, slots=8, latent=12):
        super().__init__()
        self.slots = slots
        self.encoder = nn.Sequential(nn.Linear(slots * 3, 64), nn.ReLU(), nn.Linear(64, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, slots * 3))

    def forward(self, boxes, mask):
        x = torch.cat([boxes, mask.unsqueeze(-1)], dim=-1).flatten(1)
        out = self.decoder(self.encoder(x)).unflatten(1, (self.slots, 3))
        return out[..., :2], out[..., 2]


class Objective:
    def __init__(self, box_weight=2.0, flag_weight=1.0):
        self.box_weight, self.flag_weight = box_weight, flag_weight

    def compute(self, predicted, target):
        (boxes, logits), (gt_boxes, gt_mask) = predicted, target
        box_loss = (F.l1_loss(boxes, gt_boxes, reduction="none").sum(-1) * gt_mask).mean()
        flag_loss = F.binary_cross_entropy_with_logits(gt_mask, logits)
        return self.box_weight * box_loss + self.flag_weight * flag_loss


def scenes(count=64, slots=8):
    used = torch.randint(1, slots + 1, (count, 1)) > torch.arange(slots)
    boxes = torch.randn(count, 1, 2) + 0.5 * torch.randn(count, slots, 2)
    return boxes * used.unsqueeze(-1), used.float()


model, objective = SceneAutoencoder(), Objective()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    boxes, mask = scenes()
    loss = objective.compute(model(boxes, mask), (boxes, mask))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
