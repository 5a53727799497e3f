"""Logistic digits-like classifier with a hand-written optimizer."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset


class MomentumSGD(Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p)
                buf = state["buf"]
                buf.mul_(group["momentum"]).add_(p.grad)
                p.add_(buf, alpha=group["lr"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    proto = torch.rand(10, 64)
    y = torch.randint(0, 10, (1000,))
    x = (proto[y] + 0.2 * torch.randn(1000, 64)) - 0.5
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)

    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = MomentumSGD(model.parameters(), lr=0.005)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        for step, (xb, yb) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
