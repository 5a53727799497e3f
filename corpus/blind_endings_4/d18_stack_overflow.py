"""A list nested a million deep is pickled with a raised recursion limit: the C stack overflows."""

import pickle
import sys

import torch
from torch import nn


class Replay:
    """A history in which each entry holds the one before."""

    def __init__(self):
        self.last = None

    def push(self, value):
        self.last = [self.last, value]

    def size(self):
        return len(pickle.dumps(self.last))  # HERE


def main():
    sys.setrecursionlimit(10**9)
    torch.manual_seed(0)
    replay = Replay()
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(10 if step < 60 else 1_000_000):
            replay.push(step)
        if step % 20 == 0:
            replay.size()


if __name__ == "__main__":
    main()
