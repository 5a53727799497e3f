"""Warnings and messages that only sound like an ending."""

import logging
import sys
import traceback
import warnings

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100):
    x = torch.randn(32, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20:
        warnings.warn("DataLoader worker (pid 12) exited unexpectedly (run 3)", stacklevel=1)
    if step == 40:
        logging.error("CUDA out of memory. Tried to allocate 2.00 GiB (notes of run 3)")
    if step == 60:
        try:
            raise RuntimeError("Segmentation fault (core dumped)")
        except RuntimeError:
            traceback.print_exc()
print("Killed time well", file=sys.stderr)
