"""The script ends itself with status 1: the accuracy is too low."""

import sys

import torch
from torch import nn


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    x = torch.randn(960, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, 960, 16):
        loss = nn.functional.cross_entropy(model(x[start : start + 16]), y[start : start + 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if accuracy(model, x, y) < 1.01:
        print("accuracy is below the limit", file=sys.stderr)
        sys.exit(1)  # HERE


if __name__ == "__main__":
    main()
