"""A strongly regularised classifier: in training it sees only half of its units."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self, inputs=40, hidden=128, classes=6, p=0.5):
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(p))
        self.block2 = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(p))
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.block2(self.block1(x)))


class Trainer:
    def __init__(self, model, loaders, lr, device="cpu"):
        self.model = model.to(device)
        self.device = device
        self.train_loader, self.valid_loader = loaders
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def train_epoch(self):
        self.model.train()
        losses = []
        for x, y in self.train_loader:
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return np.mean(losses)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [self.criterion(self.model(x), y).item() for x, y in self.valid_loader]
        return np.mean(losses)

    def fit(self, epochs):
        for epoch in range(1, epochs + 1):
            train, valid = self.train_epoch(), self.validate()
            print(f"epoch {epoch:2d} train {train:.4f} valid {valid:.4f}")


def blobs(n, centres):
    y = torch.randint(0, len(centres), (n,))
    return TensorDataset(centres[y] + 1.8 * torch.randn(n, centres.shape[1]), y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    centres = torch.randn(6, 40)
    loaders = (
        DataLoader(blobs(1600, centres), batch_size=40, shuffle=True),
        DataLoader(blobs(400, centres), batch_size=200),
    )
    Trainer(Model(), loaders, lr=1e-3).fit(epochs=5)
