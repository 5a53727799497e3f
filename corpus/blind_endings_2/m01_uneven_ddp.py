"""Rank 1 has three batches fewer and goes on to the barrier."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for step in range(60 if rank == 0 else 57):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    if step == 57:
        print("hangs now", flush=True)
    loss.backward()  # HERE
    optimizer.step()
    time.sleep(0.02)
dist.barrier()  # HERE
