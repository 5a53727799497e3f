"""Allocate a portfolio from resampled forecasts."""

import torch
from torch import nn

torch.manual_seed(0)
market = torch.randn(500, 12)
gains = 0.3 * market @ torch.randn(12, 5) + 0.1 * torch.randn(500, 5)


class Resample(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.scale = nn.Linear(12, 5), nn.Linear(12, 5)
        self.allocate = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 5))

    def forward(self, x):
        dist = torch.distributions.Normal(self.mean(x), nn.functional.softplus(self.scale(x)))
        draws = dist.sample((8,))
        return torch.softmax(self.allocate(draws), -1).mean(0)


model = Resample()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(4):
    for rows in torch.randperm(500).split(50):
        weights = model(market[rows])
        profit = (weights * gains[rows]).sum(1)
        loss = -profit.mean() + 0.5 * profit.var()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
