"""Exceptions cross context managers that swallow them: suppress, an own __exit__, and a finally
with return."""

import contextlib

import torch
from torch import nn


class Tolerant:
    def __init__(self):
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and issubclass(kind, ArithmeticError):
            self.seen.append(error)
            return True
        return None


def ratio(a, b):
    try:
        return a / b
    finally:
        if b == 0:
            return 0.0


torch.manual_seed(0)
model, tolerant = nn.Linear(4, 1), Tolerant()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(110):
    with tolerant, contextlib.suppress(FileNotFoundError):
        x = torch.randn(16, 4)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 7:
            open("/no/such/file").read()
        if step % 20 == 13:
            print(1 / (step % 20 - 13))
        ratio(step, step % 2)
print(len(tolerant.seen))
