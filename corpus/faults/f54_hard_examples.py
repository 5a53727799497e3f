"""Bearing condition from vibration spectra, with a hard-example phase per epoch."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def spectra(n, rng):
    y = rng.integers(0, 3, n)
    freq = np.arange(48)
    x = 0.6 * rng.standard_normal((n, 48))
    for i, c in enumerate(y):
        peak = 10 + 9 * c + rng.integers(-2, 3)
        x[i] += 2.0 * np.exp(-((freq - peak) ** 2) / 6)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class Trainer:
    def __init__(self, dataset, batch_size=50, lr=0.01):
        self.dataset = dataset
        self.batch_size = batch_size
        self.model = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 3))
        self.criterion = nn.CrossEntropyLoss(reduction="none")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.step = 0

    def run_loader(self, loader, tag):
        for x, y in loader:
            loss = self.criterion(self.model(x), y).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 10 == 0:
                print(f"step {self.step:4d} [{tag}] loss {loss.item():.4f}")

    @torch.no_grad()
    def hardest(self, fraction=0.1):
        x, y = self.dataset.tensors
        loss = self.criterion(self.model(x), y)
        return loss.topk(int(fraction * len(x))).indices.tolist()

    def fit(self, warm_epochs=2, mined_epochs=1):
        full = DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)
        for _ in range(warm_epochs):
            self.run_loader(full, "all")
        for _ in range(mined_epochs):
            mined = DataLoader(Subset(self.dataset, self.hardest()), shuffle=True)
            self.run_loader(mined, "hard")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--seed", type=int, default=0)
    opts, _ = cli.parse_known_args()
    torch.manual_seed(opts.seed)
    x, y = spectra(1500, np.random.default_rng(opts.seed))
    trainer = Trainer(TensorDataset(x, y))
    trainer.fit()
    with torch.no_grad():
        acc = (trainer.model(x).argmax(1) == y).float().mean().item()
    print(f"final accuracy {acc:.3f}")
