"""Early stopping by sys.exit(0) from inside the loop."""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10_000):
        x = torch.randn(32, 6)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 1e-3:
            print("good enough at step", step)
            sys.exit(0)


if __name__ == "__main__":
    main()
