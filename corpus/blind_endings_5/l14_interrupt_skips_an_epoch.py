"""Ctrl-C skips the rest of an epoch, as in some research code; the next epoch starts as usual."""

import time

import torch
from torch import nn


def epoch(model, optimizer, number):
    for step in range(80):
        x = torch.randn(16, 6)
        loss = nn.functional.mse_loss(model(x), x.amax(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if (number, step) == (1, 20):
            print("signal me", flush=True)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 18), nn.Tanh(), nn.Linear(18, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for number in range(4):
    try:
        epoch(model, optimizer, number)
    except KeyboardInterrupt:
        print("epoch", number, "skipped")
