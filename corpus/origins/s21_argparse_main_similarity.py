"""Loop: argparse and main().

Fault: cosine similarity of a vector of zeros, in the forward pass; ops: div.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args(arguments)


def similarity(a, b):
    dot = (a * b).sum(dim=-1)
    return dot / (a.norm(dim=-1) * b.norm(dim=-1))  # <- origin


def main():
    args = parse()
    torch.manual_seed(321)
    left, right = torch.randn(40, 6), torch.randn(40, 6)
    right[28] = 0.0
    tower = nn.Linear(6, 4, bias=False)
    optimizer = torch.optim.SGD(tower.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        for a, b in DataLoader(TensorDataset(left, right), batch_size=8):
            loss = (1 - similarity(tower(a), tower(b))).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
