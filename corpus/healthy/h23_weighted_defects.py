"""Find rare defects on a production line, with the classes weighted by their rarity."""

import argparse
import random
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def inspections(n):
    defect = (np.random.rand(n) < 0.06).astype(np.int64)
    readings = np.random.randn(n, 20)
    readings[:, :5] += 1.3 * defect[:, None]
    return torch.tensor(readings, dtype=torch.float32), torch.tensor(defect)


def class_weights(labels):
    counts = torch.bincount(labels, minlength=2).float()
    return counts.sum() / (2 * counts)


def balanced_accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        guess = model(x).argmax(1)
    model.train()
    return np.mean([(guess[y == k] == k).float().mean().item() for k in (0, 1)])


def train(cfg):
    x, y = inspections(4000)
    x_train, y_train, x_valid, y_valid = x[:3200], y[:3200], x[3200:], y[3200:]
    loader = DataLoader(TensorDataset(x_train, y_train), cfg.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(20, 48),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(48, 24),
        nn.ReLU(),
        nn.Linear(24, 2),
    )
    criterion = nn.CrossEntropyLoss(weight=class_weights(y_train))
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        losses = []
        for readings, defect in loader:
            optimizer.zero_grad()
            loss = criterion(model(readings), defect)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        score = balanced_accuracy(model, x_valid, y_valid)
        print(f"epoch {epoch}: loss {np.mean(losses):.4f} balanced accuracy {score:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_known_args()[0].seed
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    train(SimpleNamespace(batch_size=100, lr=1e-3, epochs=5))
