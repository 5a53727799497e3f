"""A ProcessPoolExecutor whose worker leaves: BrokenProcessPool where the result is read."""

import os
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn


def augment(number):
    if number == 77:
        os._exit(9)
    return [float((number * k) % 7) for k in range(1, 7)]


class Pipeline:
    def __init__(self):
        self.pool = ProcessPoolExecutor(2)

    def __iter__(self):
        for first in range(0, 160, 8):
            futures = [self.pool.submit(augment, first + k) for k in range(8)]
            yield torch.tensor([future.result() for future in futures])  # HERE


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x in Pipeline():
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
