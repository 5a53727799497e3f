"""Small CNN classifier with a Trainer class and a config dataclass."""

import argparse
import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    lr: float = 1e-3
    epochs: int = 4
    batch_size: int = 32
    seed: int = 0


class SmallCNN(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16 * 4 * 4, n_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    x = torch.randn(n, 1, 16, 16, generator=g) * 0.5
    for i, c in enumerate(y):
        r, q = divmod(int(c), 2)
        x[i, 0, r * 8 : r * 8 + 8, q * 8 : q * 8 + 8] += 1.0
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, model, cfg, device="cpu"):
        self.cfg = cfg
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        self.model = copy.deepcopy(model).to(device)
        self.device = device

    def train_epoch(self, loader):
        self.model.train()
        total, n = 0.0, 0
        for x, y in loader:
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(x)
            n += len(x)
        return total / n

    def fit(self, loader):
        for epoch in range(self.cfg.epochs):
            print(f"epoch {epoch}: train loss {self.train_epoch(loader):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    cfg = Config(seed=args.seed)
    torch.manual_seed(cfg.seed)
    np.random.seed(cfg.seed)
    loader = DataLoader(make_data(640, cfg.seed), batch_size=cfg.batch_size, shuffle=True)
    Trainer(SmallCNN(), cfg).fit(loader)


if __name__ == "__main__":
    main()
