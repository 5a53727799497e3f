"""Fit a smooth function with a configurable MLP."""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class NetConfig:
    width: int = 64
    depth: int = 3
    in_dim: int = 4


class MLP(nn.Module):
    def __init__(self, cfg: NetConfig):
        super().__init__()
        self.inp = nn.Linear(cfg.in_dim, cfg.width)
        self.hidden = [nn.Linear(cfg.width, cfg.width) for _ in range(cfg.depth)]
        self.out = nn.Linear(cfg.width, 1)
        self.act = nn.GELU()

    def forward(self, x):
        x = self.act(self.inp(x))
        for layer in self.hidden:
            x = self.act(layer(x))
        return self.out(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    x = torch.rand(1024, 4) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] - 0.5 * x[:, 3] ** 2

    model = MLP(NetConfig())
    print("parameters:", sum(p.numel() for p in model.parameters()))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.MSELoss()
    for step in range(args.steps):
        idx = torch.randint(0, 1024, (64,))
        loss = loss_fn(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
