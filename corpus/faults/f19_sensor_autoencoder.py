"""Autoencoder for sensor readings driven by a few hidden factors."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self, inputs=24, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 48), nn.GELU(), nn.Linear(48, code))
        self.decoder = nn.Sequential(
            nn.GELU(), nn.Linear(code, 48), nn.GELU(), nn.Linear(48, inputs)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def loss(self, x):
        return nn.functional.mse_loss(self(x), x)


def make_readings(n):
    factors = np.random.randn(n, 4)
    mixing = np.random.randn(4, 24)
    readings = np.tanh(factors @ mixing) + 0.1 * np.random.randn(n, 24)
    readings = (readings - readings.mean(0)) / readings.std(0)
    return torch.tensor(readings, dtype=torch.float32)


def run(config):
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)

    data = make_readings(1600)
    loader = DataLoader(TensorDataset(data), batch_size=config.batch_size, shuffle=True)
    model = AutoEncoder()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=0.9, weight_decay=config.weight_decay
    )
    for epoch in range(config.epochs):
        total = 0.0
        for (x,) in loader:
            loss = model.loss(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        norm = sum(p.norm().item() ** 2 for p in model.parameters()) ** 0.5
        print(f"epoch {epoch} loss {total / len(loader):.4f} weight norm {norm:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=0.5)
    run(parser.parse_known_args()[0])
