"""Gaussian density model: the negative log-likelihood goes below zero."""

import argparse
import math

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)


class DensityNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 4))

    def forward(self, x):
        mu, log_sigma = self.net(x).chunk(2, dim=-1)
        return mu, log_sigma.clamp(-6, 3)


def nll(mu, log_sigma, y):
    z = (y - mu) / log_sigma.exp()
    return (0.5 * z**2 + log_sigma + 0.5 * math.log(2 * math.pi)).sum(-1).mean()


x = torch.rand(1000, 3) * 2 - 1
y = torch.stack([0.3 * torch.sin(3 * x[:, 0]), 0.2 * x[:, 1] * x[:, 2]], 1)
y = y + 0.02 * torch.randn_like(y)
model = DensityNet()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(10):
    for idx in torch.randperm(1000).split(50):
        loss = nll(*model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} nll {loss.item():.4f}")
