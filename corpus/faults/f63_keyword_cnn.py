"""Spot keywords in short feature maps with a small CNN."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def initialise(module):
    """Sparse start: units wake up only for strong patterns."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)
    if getattr(module, "sparse", False):
        nn.init.constant_(module.bias, -12.0)


class KeywordNet(nn.Module):
    def __init__(self, keywords=5):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.dense = nn.Linear(24 * 4 * 5, 64)
        self.dense.sparse = True
        self.out = nn.Linear(64, keywords)
        self.apply(initialise)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.dense(x.flatten(1)))
        return self.out(x)


def feature_maps(n):
    keyword = torch.randint(0, 5, (n,))
    maps = 0.7 * torch.randn(n, 1, 16, 20)
    for k in range(5):
        rows = keyword == k
        maps[rows, :, 3 * k : 3 * k + 3, 4:16] += 1.0
    return maps / maps.std(), keyword


class Runner:
    def __init__(self, net, lr):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def update(self, batch):
        maps, keyword = batch
        self.optimizer.zero_grad()
        loss = self.criterion(self.net(maps), keyword)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    runner = Runner(KeywordNet(), lr=1e-3)
    for i in range(80):
        loss = runner.update(feature_maps(32))
        if i % 10 == 0:
            print(f"iteration {i} loss {loss:.4f}")


if __name__ == "__main__":
    main()
