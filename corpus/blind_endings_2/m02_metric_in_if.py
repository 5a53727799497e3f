"""Only rank 0 logs, and its logging reduces the loss over all ranks."""

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


def mean_over_ranks(value):
    value = value.detach().clone()
    dist.all_reduce(value)  # HERE
    return value / dist.get_world_size()


for step in range(200):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if rank == 0 and step % 50 == 49:
        print("hangs now", flush=True)
        print(step, mean_over_ranks(loss).item())  # HERE
