"""Dropout network whose training loss stays above its validation loss."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def evaluate(model, loader, criterion):
    model.eval()
    with torch.no_grad():
        total = sum(criterion(model(x), y).item() * len(y) for x, y in loader)
    model.train()
    return total / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 6, (1200,))
    x = 1.2 * torch.randn(6, 20)[y] + torch.randn(1200, 20)
    train, val = random_split(TensorDataset(x, y), [1000, 200])
    train_dl, val_dl = DataLoader(train, 50, shuffle=True), DataLoader(val, 100)
    model = nn.Sequential(
        nn.Linear(20, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 6),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(6):
        model.train()
        total = 0.0
        for xb, yb in train_dl:
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            optimizer.step()
            total += loss.item()
        va = evaluate(model, val_dl, criterion)
        print(f"epoch {epoch} train {total / len(train_dl):.4f} val {va:.4f}")


if __name__ == "__main__":
    main()
