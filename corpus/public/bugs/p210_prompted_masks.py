"""Masks of organs in small scans, with an overlap term and a cross entropy."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class DiceCELoss(nn.Module):
    def __init__(self, lambda_dice=1.0, lambda_ce=1.0):
        super().__init__()
        self.cross_entropy = nn.CrossEntropyLoss()
        self.lambda_dice, self.lambda_ce = lambda_dice, lambda_ce

    def dice(self, logits, target):
        p = torch.sigmoid(logits).flatten(1)
        t = target.flatten(1)
        overlap = (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)
        return (1 - overlap).mean()

    def ce(self, logits, target):
        return self.cross_entropy(logits, target.float())

    def forward(self, logits, target):
        return self.lambda_dice * self.dice(logits, target) + self.lambda_ce * self.ce(
            logits, target
        )


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 1, 1),
)  # fmt: skip
seg_loss = DiceCELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(40):
    gt = F.interpolate((torch.rand(16, 1, 3, 3) < 0.4).float(), size=12)
    image = gt + 0.5 * torch.randn(16, 1, 12, 12)
    loss = seg_loss(model(image), gt)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
