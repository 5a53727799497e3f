"""Classify spectra; every class is scored on its own recordings afterwards."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def norm(channels):
    return nn.BatchNorm1d(channels, track_running_stats=False)


class SpectrumNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Conv1d(1, 16, 9, stride=2, padding=4)
        self.norm1 = norm(16)
        self.conv = nn.Conv1d(16, 32, 5, stride=2, padding=2)
        self.norm2 = norm(32)
        self.fc = nn.Linear(32, 32)
        self.norm3 = norm(32)
        self.out = nn.Linear(32, classes)

    def forward(self, x):
        x = F.relu(self.norm1(self.stem(x)))
        x = F.relu(self.norm2(self.conv(x)))
        x = F.relu(self.norm3(self.fc(x.mean(dim=2))))
        return self.out(x)


def spectra(n, classes=5, length=80):
    """Two peaks whose places tell the class, over a noisy ground."""
    grid = np.arange(length)
    label = np.random.randint(0, classes, n)
    first = 12 + 6 * label + np.random.randn(n)
    second = 70 - 5 * label + np.random.randn(n)
    width = 2.0 + 0.8 * label
    peaks = np.exp(-(((grid - first[:, None]) / width[:, None]) ** 2))
    peaks += np.exp(-(((grid - second[:, None]) / 3) ** 2))
    x = peaks * 3 - 0.5 + 0.3 * np.random.randn(n, length)
    return torch.tensor(x, dtype=torch.float32).unsqueeze(1), torch.tensor(label)


def per_class_accuracy(model, x, y):
    model.eval()
    scores = []
    with torch.no_grad():
        for k in y.unique():
            chosen = y == k
            scores.append((model(x[chosen]).argmax(1) == k).float().mean().item())
    model.train()
    return scores


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    x, y = spectra(1200)
    x_test, y_test = spectra(300)
    model = SpectrumNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        order = torch.randperm(len(x))
        for begin in range(0, len(x), 40):
            rows = order[begin : begin + 40]
            logits = model(x[rows])
            loss = F.cross_entropy(logits, y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        train_accuracy = (logits.argmax(1) == y[rows]).float().mean().item()
        scores = per_class_accuracy(model, x_test, y_test)
        shown = " ".join(f"{s:.2f}" for s in scores)
        print(f"epoch {epoch} loss {loss.item():.3f} train {train_accuracy:.2f} test {shown}")


if __name__ == "__main__":
    main()
