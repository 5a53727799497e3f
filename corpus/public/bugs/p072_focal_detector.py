"""Detect events with a focal loss."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
signals = torch.randn(400, 18)
events = (signals[:, :6].sum(1) > 0).float()


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=0.5):
        super().__init__()
        self.gamma, self.alpha = gamma, alpha

    def forward(self, inputs, targets):
        probs = torch.sigmoid(inputs)
        bce = F.binary_cross_entropy_with_logits(probs, targets, reduction="none")
        p_t = probs * targets + (1 - probs) * (1 - targets)
        alpha_t = self.alpha * targets + (1 - self.alpha) * (1 - targets)
        return (alpha_t * (1 - p_t) ** self.gamma * bce).mean()


net = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
criterion = FocalLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(4):
    for rows in torch.randperm(400).split(40):
        loss = criterion(net(signals[rows]), events[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
