"""A callback at exit raises; Python prints it, and the status stays 0."""

import atexit

import torch
from torch import nn


@atexit.register
def upload():
    raise ConnectionError("the tracking server has gone away")


torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(120):
    x = torch.randn(16, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
