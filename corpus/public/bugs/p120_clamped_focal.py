"""Rare events with a focal loss on clamped probabilities."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
x[::16] *= 12
y = (x[:, :1] > 0.8).float()


class FocalLoss(nn.Module):
    def __init__(self, gamma=1.0, eps=1e-8):
        super().__init__()
        self.gamma, self.eps = gamma, eps

    def forward(self, p, y):
        p = torch.clamp(p, self.eps, 1 - self.eps)
        positive = y * (1 - p) ** self.gamma * torch.log(p)
        negative = (1 - y) * p**self.gamma * torch.log(1 - p)
        return -(positive + negative).mean()


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
criterion = FocalLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
for epoch in range(6):
    for rows in torch.randperm(256).split(32):
        loss = criterion(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
