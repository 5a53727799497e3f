"""Rank 1 averages two metrics in another order, with other shapes."""

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

for step in range(200):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 80:
        print("hangs now", flush=True)
        metrics = {"accuracy": torch.zeros(1), "histogram": torch.zeros(64)}
        for name in sorted(metrics, reverse=rank == 1):
            dist.all_reduce(metrics[name])  # HERE
