"""Fit narrow Gaussian parts to points: the likelihood of a mixture."""

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 48)
points = centres[torch.randint(0, 4, (512,))] + 0.02 * torch.randn(512, 48)


class Mixture(nn.Module):
    def __init__(self, parts=4, d=48):
        super().__init__()
        self.mean = nn.Parameter(centres + 0.1 * torch.randn(parts, d))
        self.log_std = nn.Parameter(torch.full((parts, d), -0.5))
        self.weight = nn.Parameter(torch.zeros(parts))

    def forward(self, x):
        gap = (x[:, None] - self.mean) / self.log_std.exp()
        log_prob = (-0.5 * gap**2 - self.log_std - 0.919).sum(-1)
        log_weight = torch.log_softmax(self.weight, 0)
        log_mix = torch.log(torch.exp(log_prob + log_weight).sum(1))
        return -log_mix.mean()


model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=0.15)
for step in range(60):
    loss = model(points[torch.randint(0, 512, (64,))])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
