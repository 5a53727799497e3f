"""A required option of the script was forgotten."""

import argparse

import torch
from torch import nn


def parse():
    parser = argparse.ArgumentParser(description="train a linear model")
    parser.add_argument("--data-size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args()  # HERE


def main():
    args = parse()
    model = nn.Linear(args.data_size, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(args.steps):
        x = torch.randn(8, args.data_size)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
