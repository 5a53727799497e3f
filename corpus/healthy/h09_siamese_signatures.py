"""Siamese network: one encoder applied to both pictures of a pair."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.fc = nn.Linear(32 * 9, dim)

    def forward(self, x):
        return F.normalize(self.fc(self.conv(x).flatten(1)), dim=1)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, left, right):
        similarity = (self.encoder(left) * self.encoder(right)).sum(dim=1)
        return self.scale * similarity + self.offset


class PairSampler:
    """Pairs of signatures, half of them by the same hand."""

    def __init__(self, writers=12):
        self.hands = torch.randn(writers, 1, 12, 12)

    def __call__(self, n):
        left = torch.randint(0, len(self.hands), (n,))
        other = (left + torch.randint(1, len(self.hands), (n,))) % len(self.hands)
        same = torch.rand(n) < 0.5
        right = torch.where(same, left, other)
        noise = 0.8 * torch.randn(2, n, 1, 12, 12)
        return self.hands[left] + noise[0], self.hands[right] + noise[1], same.float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    sampler, model = PairSampler(), Siamese()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(160):
        left, right, same = sampler(48)
        optimizer.zero_grad()
        logits = model(left, right)
        loss = F.binary_cross_entropy_with_logits(logits, same)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            accuracy = ((logits > 0) == (same > 0.5)).float().mean().item()
            print(f"step {step}: loss {loss.item():.4f} accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
