"""Rank 1 has fewer batches and leaves in good order; rank 0 still waits for its gradients."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _step in range(200 if rank == 0 else 150):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # HERE
        parameter.grad /= 2
    optimizer.step()
    time.sleep(0.01)
print("rank", rank, "is done", os.getpid())
