"""House-price style regression with standardised features and target."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Houses(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 12))
        w = rng.normal(size=12)
        y = x @ w + 0.5 * x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=n)
        y = (y - y.mean()) / y.std()
        self.x = torch.tensor(x, dtype=torch.float32)
        self.y = torch.tensor(y, dtype=torch.float32).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def train(args):
    torch.manual_seed(args.seed)
    loader = DataLoader(Houses(800, args.seed), batch_size=args.batch_size, shuffle=True)
    net = nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    criterion = nn.MSELoss()
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            pred = net(x)
            loss = criterion(pred, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"Epoch [{epoch + 1}/{args.epochs}] MSE: {total / len(loader):.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--lr", type=float, default=1e-7)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--epochs", type=int, default=8)
    args, _ = p.parse_known_args()
    train(args)
