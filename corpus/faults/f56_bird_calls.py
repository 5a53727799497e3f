"""Bird call recognition on log-mel patches."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


class CallNet(nn.Module):
    def __init__(self, species):
        super().__init__()
        self.block1 = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU()
        )
        self.block2 = nn.Sequential(
            nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        )
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(24 * 9, species)

    def forward(self, x):
        x = F.max_pool2d(self.block1(x), 2)
        x = F.max_pool2d(self.block2(x), 2)
        return self.fc(self.dropout(x.flatten(1)))


def mel_patches(n, species, rng):
    y = rng.integers(0, species, n)
    x = rng.normal(-2, 0.8, (n, 1, 12, 12))
    t = np.arange(12)
    for i, s in enumerate(y):
        start, slope = rng.integers(2, 5), [0.6, -0.6, 0.0, 0.3, -0.3][s]
        line = np.clip(np.round(5 + slope * (t - 6) + rng.normal(0, 0.3)), 0, 11).astype(int)
        x[i, 0, line[start:], t[start:]] += 3
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def validate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += len(y)
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=7)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    data = mel_patches(900, 5, np.random.default_rng(args.seed))
    train_set, val_set = random_split(data, [700, 200])
    train_loader = DataLoader(train_set, batch_size=35, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=100)

    model = CallNet(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    print(f"accuracy before training {validate(model, val_loader):.3f}")
    for epoch in range(args.epochs):
        running = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item()
        acc = validate(model, val_loader)
        print(f"epoch {epoch}: loss {running / len(train_loader):.4f} val acc {acc:.3f}")


if __name__ == "__main__":
    main()
