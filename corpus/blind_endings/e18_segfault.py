"""A segmentation fault in a native library called by the loss."""

import ctypes

import torch
from torch import nn


def native_loss(prediction, target, step):
    if step == 71:
        ctypes.memset(8, 0, 64)  # HERE
    return (prediction - target).abs().mean()


torch.manual_seed(0)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    x = torch.randn(16, 5)
    loss = native_loss(model(x), x.sum(1, keepdim=True), step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
