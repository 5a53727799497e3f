"""Sensor table: standardise, then train a regressor."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def read_table(n, seed):
    rng = np.random.default_rng(seed)
    temp = rng.normal(20, 5, n)
    hum = rng.uniform(20, 90, n)
    wind = rng.gamma(2.0, 2.0, n)
    press = rng.normal(1013, 8, n)
    power = 0.4 * temp - 0.1 * hum + wind**1.2 + rng.normal(0, 0.5, n)
    wind[rng.random(n) < 0.03] = np.nan
    return np.stack([temp, hum, wind, press], 1), power


class SensorData(Dataset):
    def __init__(self, x, y):
        x = (x - np.nanmean(x, 0)) / np.nanstd(x, 0)
        y = (y - y.mean()) / y.std()
        self.x = torch.tensor(x, dtype=torch.float32)
        self.y = torch.tensor(y, dtype=torch.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    args, _ = p.parse_known_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(SensorData(*read_table(1000, args.seed)), batch_size=50, shuffle=True)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(3):
        for batch in loader:
            pred = net(batch["x"]).squeeze(1)
            loss = ((pred - batch["y"]) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
