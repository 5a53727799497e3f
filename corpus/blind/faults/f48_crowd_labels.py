"""Train on labels collected from crowd annotators."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def annotate(truth, n_classes, rng, agreement=0.6):
    """One worker per item; workers do not always agree with the truth."""
    answer = truth.copy()
    flip = rng.random(len(truth)) > agreement
    answer[flip] = rng.integers(0, n_classes, flip.sum())
    return answer


def load(n, seed, n_classes=6):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, n_classes, n)
    centers = 2.5 * rng.normal(size=(n_classes, 16))
    x = centers[truth] + rng.normal(size=(n, 16))
    y = annotate(truth, n_classes, rng)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def fit(model, loader, epochs, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        total, hits, n = 0.0, 0, 0
        for x, y in loader:
            logits = model(x)
            loss = criterion(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
            hits += (logits.argmax(1) == y).sum().item()
            n += len(y)
        print(f"epoch {epoch:2d} loss {total / n:.4f} acc {hits / n:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    x, y = load(1280, args.seed)
    dl = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 6))
    fit(net, dl, epochs=10, lr=3e-3)
