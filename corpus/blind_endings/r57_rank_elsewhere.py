"""Rank 1 waits for ever for a file; rank 0 waits for rank 1 in the reduction."""

import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


def wait_for(path):
    print("hangs now", flush=True)
    while not pathlib.Path(path).exists():
        time.sleep(0.5)  # HERE


for step in range(300):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if rank == 1 and step == 130:
        wait_for("/nonexistent/shard-00002.ready")  # HERE
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2
    optimizer.step()
    time.sleep(0.01)
dist.destroy_process_group()
