"""Binary churn prediction on tabular features."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class ChurnDataset(Dataset):
    def __init__(self, n=800, seed=0):
        rng = np.random.RandomState(seed)
        self.X = rng.randn(n, 10).astype(np.float32)
        logits = 1.5 * self.X[:, 0] - 2.0 * self.X[:, 3] + self.X[:, 5]
        self.y = (logits + 0.3 * rng.randn(n) > 0).astype(np.float32)

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], self.y[i : i + 1]


class ChurnModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(10, 32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 1),
            nn.Softmax(dim=1),
        )

    def forward(self, x):
        return self.layers(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(ChurnDataset(seed=args.seed), batch_size=32, shuffle=True)
    model = ChurnModel()
    criterion = nn.BCELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        losses, hits = [], 0
        for X, y in loader:
            optimizer.zero_grad()
            pred = model(X)
            loss = criterion(pred, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            hits += ((pred > 0.5).float() == y).sum().item()
        print(f"epoch {epoch} loss {np.mean(losses):.4f} acc {hits / 800:.3f}")


if __name__ == "__main__":
    main()
