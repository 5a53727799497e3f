"""Gradient accumulation over small batches, each loss divided by their number."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset


class SmallCNN(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(4, 32)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.fc(x.mean(dim=(2, 3)))


def coloured_patches(n, classes=6):
    hue = torch.randn(classes, 3, 1, 1)
    label = torch.randint(0, classes, (n,))
    return TensorDataset(0.7 * hue[label] + torch.randn(n, 3, 10, 10), label)


class Accumulator:
    """Steps the optimizer once in every `every` calls."""

    def __init__(self, optimizer, scheduler, every):
        self.optimizer, self.scheduler, self.every = optimizer, scheduler, every
        self.calls = 0

    def __call__(self, loss):
        (loss / self.every).backward()
        self.calls += 1
        if self.calls % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=4)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(coloured_patches(1280), batch_size=8, shuffle=True)
    model = SmallCNN(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = LinearLR(optimizer, 1.0, 0.2, total_iters=160)
    update = Accumulator(optimizer, scheduler, args.accumulate)
    for epoch in range(4):
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            update(loss)
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
