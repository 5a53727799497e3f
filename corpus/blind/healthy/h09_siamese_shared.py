"""Siamese encoder shared by both branches, InfoNCE objective."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, a, b):
        return F.normalize(self.net(a), dim=1), F.normalize(self.net(b), dim=1)


encoder = Encoder()
optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
mix = torch.randn(6, 24)
for step in range(120):
    base = torch.randn(48, 6) @ mix
    a, b = base + torch.randn(48, 24), base + torch.randn(48, 24)
    za, zb = encoder(a, b)
    logits = za @ zb.T / 0.2
    target = torch.arange(48)
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.4f}")
