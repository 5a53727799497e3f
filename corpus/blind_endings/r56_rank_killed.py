"""Rank 3 of 4 is killed."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(200):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 4
    optimizer.step()
    time.sleep(0.02)
    if rank == 3 and step == 110:
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
