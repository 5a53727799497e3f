"""Predict the next-day charge level of a battery pack from 24 sensor readings."""

import argparse
import copy
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    return ap.parse_known_args()[0]


def make_data(n, rng):
    x = rng.normal(size=(n, 24)).astype("float32")
    w = rng.normal(size=(24,)) / 5
    y = np.tanh(x @ w) + 0.3 * x[:, 0] * x[:, 3] + 0.05 * rng.normal(size=n)
    return torch.from_numpy(x), torch.from_numpy(y.astype("float32"))


class Regressor(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(24, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


class Engine:
    """Holds a model, its optimizer and the loop around them."""

    def __init__(self, model, lr, device="cpu"):
        self.device = torch.device(device)
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.01)
        self.loss_fn = nn.SmoothL1Loss()

    def prepare(self):
        # keep the caller's model untouched, train a private replica on the device
        self.model = copy.deepcopy(self.model).to(self.device)
        self.model.train()
        return self

    def train_epoch(self, loader):
        total, count = 0.0, 0
        for x, y in loader:
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(x)
            count += len(x)
        return total / count

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        value = self.loss_fn(self.model(x), y).item()
        self.model.train()
        return value


def main():
    args = get_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    x, y = make_data(1280, np.random.default_rng(args.seed))
    loader = DataLoader(TensorDataset(x[:1024], y[:1024]), batch_size=args.batch_size, shuffle=True)
    engine = Engine(Regressor(), args.lr).prepare()
    for epoch in range(args.epochs):
        train_loss = engine.train_epoch(loader)
        val_loss = engine.evaluate(x[1024:], y[1024:])
        print(f"epoch {epoch + 1:2d}  train {train_loss:.4f}  val {val_loss:.4f}")


if __name__ == "__main__":
    main()
