"""SIGILL, as from a wheel that was built for a newer processor."""

import os
import signal

import torch
from torch import nn


def fused_kernel(x, step):
    if step == 75:
        os.kill(os.getpid(), signal.SIGILL)  # HERE
    return torch.relu(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.calls = -1

    def forward(self, x):
        self.calls += 1
        return fused_kernel(self.inner(x), self.calls)


torch.manual_seed(0)
model = nn.Sequential(Block(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(150):
    x = torch.randn(16, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
