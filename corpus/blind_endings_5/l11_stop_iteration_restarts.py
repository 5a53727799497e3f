"""Epochs are counted by StopIteration, KeyError fills a cache, and an own exception ends the
loop."""

import torch
from torch import nn


class Finished(Exception):
    pass


class Cache(dict):
    def __missing__(self, key):
        raise KeyError(key)


def targets(cache, number):
    try:
        return cache[number]
    except KeyError:
        cache[number] = torch.full((8, 1), number / 20)
        return cache[number]


def loop(model, optimizer, cache):
    numbers, epochs = iter(range(20)), 0
    while True:
        try:
            number = next(numbers)
        except StopIteration:
            numbers, epochs = iter(range(20)), epochs + 1
            if epochs == 6:
                raise Finished from None
            continue
        x = torch.full((8, 3), number / 20) + 0.05 * torch.randn(8, 3)
        loss = nn.functional.mse_loss(model(x), targets(cache, number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 1)
try:
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1), Cache())
except Finished:
    print("finished")
