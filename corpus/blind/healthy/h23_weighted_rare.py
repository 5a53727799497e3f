"""Rare-event classifier with class weights."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    n = 2400
    y = (torch.rand(n) < 0.06).long()
    x = torch.randn(n, 10)
    x[:, :3] += 1.6 * y[:, None]
    loader = DataLoader(TensorDataset(x, y), batch_size=60, shuffle=True)
    counts = torch.bincount(y, minlength=2).float()
    weights = n / (2 * counts)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    criterion = nn.CrossEntropyLoss(weight=weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(4):
        tp, total = 0, 0.0
        for xb, yb in loader:
            out = model(xb)
            loss = criterion(out, yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            tp += ((out.argmax(1) == 1) & (yb == 1)).sum().item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} recall {tp / counts[1]:.3f}")


if __name__ == "__main__":
    main()
