"""Ctrl-C is caught to print where to resume; the script then leaves with sys.exit(130)."""

import sys
import time

import torch
from torch import nn


def fit(model, optimizer, steps):
    for step in range(steps):
        x = torch.randn(18, 6)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if step == 100:
            print("signal me", flush=True)
        yield step


def main():
    torch.manual_seed(0)
    model, done = nn.Linear(6, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    try:
        for done in fit(model, optimizer, 5000):
            pass
    except KeyboardInterrupt:
        print("stopped; continue with --from-step", done)
        sys.exit(130)


main()
