"""Fraud detection on transactions."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class FraudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 32)
        self.drop = nn.Dropout(0.2)
        self.fc2 = nn.Linear(32, 1)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x)))).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    n = 3200
    y = (torch.rand(n) < 0.015).float()
    x = torch.randn(n, 12)
    x[:, 0] += 0.8 * y
    x[:, 4] -= 0.8 * y
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    model = FraudNet()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        found, hits, total = 0, 0, 0.0
        for xb, yb in loader:
            logit = model(xb)
            loss = criterion(logit, yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            pred = (torch.sigmoid(logit) > 0.5).float()
            hits += (pred == yb).sum().item()
            found += (pred * yb).sum().item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} acc {hits / n:.4f} found {found:.0f}")


if __name__ == "__main__":
    main()
