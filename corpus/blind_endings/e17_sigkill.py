"""Killed with SIGKILL in the middle of an epoch."""

import os
import signal
import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(200):
    x = torch.randn(32, 16)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 119:
        os.kill(os.getpid(), signal.SIGKILL)
