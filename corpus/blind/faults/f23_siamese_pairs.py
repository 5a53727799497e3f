"""Siamese network over pairs with a per-pair loss list."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


def contrastive(a, b, same, margin=0.5):
    d = (a - b).pow(2).sum(-1)
    return torch.where(same, d, F.relu(margin - d))


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)

centers = torch.randn(10, 20)
model = Tower()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(60):
    ya = torch.randint(0, 10, (24,))
    same = torch.rand(24) < 0.5
    yb = torch.where(same, ya, (ya + 1) % 10)
    xa = centers[ya] + 0.3 * torch.randn(24, 20)
    xb = centers[yb] + 0.3 * torch.randn(24, 20)
    optimizer.zero_grad()
    losses = []
    for i in range(24):
        losses.append(contrastive(model(xa[i : i + 1]), model(xb[i : i + 1]), same[i : i + 1]))
    loss = torch.tensor(losses, requires_grad=True).mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
