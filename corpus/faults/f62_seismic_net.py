"""Event or noise? A deep 1-D conv net on seismic windows."""

import argparse

import numpy as np
import torch
from torch import nn


def init_weights(m):
    if isinstance(m, (nn.Conv1d, nn.Linear)):
        nn.init.normal_(m.weight, mean=0.0, std=1.0)
        nn.init.zeros_(m.bias)


def conv(cin, cout, stride=1):
    return [nn.Conv1d(cin, cout, 5, stride=stride, padding=2), nn.ReLU(inplace=True)]


def make_model():
    body = conv(3, 24) + conv(24, 24, 2) + conv(24, 24) + conv(24, 32, 2) + conv(32, 32, 2)
    return nn.Sequential(*body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 2))


def windows(n, rng):
    y = rng.integers(0, 2, n)
    x = rng.standard_normal((n, 3, 64))
    t = np.arange(64)
    for i in np.flatnonzero(y):
        onset = rng.integers(10, 40)
        burst = np.where(t > onset, np.exp(-(t - onset) / 12) * np.sin(0.9 * (t - onset)), 0)
        x[i] += 3 * burst * rng.uniform(0.5, 1, (3, 1))
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    x, y = windows(800, np.random.default_rng(args.seed))
    model = make_model().apply(init_weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(6):
        for idx in torch.randperm(len(x)).split(40):
            optimizer.zero_grad()
            out = model(x[idx])
            loss = criterion(out, y[idx])
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                acc = (out.argmax(1) == y[idx]).float().mean().item()
                print(f"step {step:3d} loss {loss.item():.4f} acc {acc:.2f}")


if __name__ == "__main__":
    main()
