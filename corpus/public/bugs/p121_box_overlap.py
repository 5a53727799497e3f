"""Boxes by the logarithm of their overlap with the truth."""

import torch
from torch import nn

torch.manual_seed(0)
features = torch.randn(240, 12)
centre = 0.5 + 0.3 * torch.tanh(features[:, :2])
size = 0.2 + 0.1 * torch.sigmoid(features[:, 2:4])
truth = torch.cat([centre - size / 2, centre + size / 2], 1)


def overlaps(a, b):
    low = torch.maximum(a[:, :2], b[:, :2])
    high = torch.minimum(a[:, 2:], b[:, 2:])
    inter = (high - low).clamp(min=0).prod(1)
    area = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1)
    return inter / (area - inter)


def iou_loss(pred, target):
    ious = overlaps(pred, target)
    return -ious.log().mean()


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
        self.centre, self.size = nn.Linear(48, 2), nn.Linear(48, 2)
        nn.init.normal_(self.centre.weight, std=0.4)

    def forward(self, x):
        h = self.trunk(x)
        c, s = torch.sigmoid(self.centre(h)), 0.3 * torch.sigmoid(self.size(h)) + 0.02
        return torch.cat([c - s / 2, c + s / 2], 1)


head = BoxHead()
optimizer = torch.optim.Adam(head.parameters(), lr=2e-3)
for epoch in range(3):
    for rows in torch.randperm(240).split(24):
        loss = iou_loss(head(features[rows]), truth[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
