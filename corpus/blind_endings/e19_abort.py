"""A native library calls abort() during evaluation."""

import os

import torch
from torch import nn


def evaluate(model):
    model.eval()
    with torch.no_grad():
        error = model(torch.randn(64, 5)).abs().mean().item()
    if error >= 0:
        os.abort()  # HERE
    model.train()
    return error


def main():
    torch.manual_seed(0)
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(80):
        x = torch.randn(16, 5)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("validation", evaluate(model))


main()
