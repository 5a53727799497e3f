"""Metric learning on pairs: neighbours are drawn together, strangers pushed apart."""

import argparse
import random

import numpy as np
import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self, inputs=16, dim=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, dim))

    def forward(self, x):
        return self.net(x)


def contrastive(a, b, same, margin=1.0):
    squared = ((a - b) ** 2).sum(dim=1)
    distance = torch.where(squared > 0, squared.sqrt(), torch.zeros_like(squared))
    pull = same * distance
    push = (1 - same) * torch.relu(margin - distance)
    return (pull + push).mean()


def sample_pairs(x, groups, n):
    left = torch.randint(0, len(x), (n,))
    right = torch.randint(0, len(x), (n,))
    # Half of the pairs come from the same group.
    for i in range(0, n, 2):
        mates = (groups == groups[left[i]]).nonzero().squeeze(1)
        right[i] = mates[torch.randint(0, len(mates), (1,))]
    same = (groups[left] == groups[right]).float()
    return x[left], x[right], same


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    centres = torch.randn(6, 16)
    groups = torch.randint(0, 6, (480,))
    x = centres[groups] + 0.6 * torch.randn(480, 16)

    model = Embedder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        left, right, same = sample_pairs(x, groups, 64)
        optimizer.zero_grad()
        loss = contrastive(model(left), model(right), same)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")
