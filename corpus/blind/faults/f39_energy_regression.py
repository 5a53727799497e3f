"""Regression of energy use with early validation printing."""

import argparse
import warnings

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

warnings.filterwarnings("ignore")


class Regressor(nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.layer1 = nn.Linear(in_features, 64)
        self.layer2 = nn.Linear(64, 32)
        self.layer3 = nn.Linear(32, 1)

    def forward(self, x):
        x = torch.relu(self.layer1(x))
        x = torch.relu(self.layer2(x))
        return self.layer3(x)


def run_epoch(model, loader, criterion, optimizer=None):
    total = 0.0
    for xb, yb in loader:
        with torch.set_grad_enabled(optimizer is not None):
            loss = criterion(model(xb), yb)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    x = torch.randn(1000, 8)
    y = x[:, 0] - 0.7 * x[:, 1] + torch.sin(2 * x[:, 2])
    train_ds, val_ds = random_split(TensorDataset(x, y), [800, 200])
    train_dl = DataLoader(train_ds, batch_size=32, shuffle=True)
    val_dl = DataLoader(val_ds, batch_size=64)
    model = Regressor(8)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        model.train()
        tr = run_epoch(model, train_dl, criterion, optimizer)
        model.eval()
        va = run_epoch(model, val_dl, criterion)
        print(f"epoch {epoch} train {tr:.4f} val {va:.4f}")


if __name__ == "__main__":
    main()
