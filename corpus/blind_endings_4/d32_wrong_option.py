"""argparse refuses an option: exit status 2 before anything was trained."""

import argparse

import torch
from torch import nn


def options(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args(words)  # HERE


def main():
    arguments = options(["--lr", "1e-2", "--step-count", "50"])
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
    for _ in range(arguments.steps):
        model(torch.randn(16, 6)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
