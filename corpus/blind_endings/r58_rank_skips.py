"""Rank 2 of 4 swallows an exception and skips the reduction of that step."""

import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


def load(step):
    if rank == 2 and step == 80:
        raise OSError("read error")
    return torch.randn(16, 8)


def validate():
    total = torch.zeros(1)
    with torch.no_grad():
        total += model(torch.ones(4, 8)).mean()
    dist.broadcast(total, src=2)  # HERE
    return total


for step in range(160):
    try:
        x = load(step)
    except OSError:
        continue
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)  # HERE
    for p, grad in zip(model.parameters(), flat.split([8, 1]), strict=True):
        p.grad.copy_(grad.view_as(p) / 4)
    optimizer.step()
    time.sleep(0.01)
print("hangs now", flush=True)
validate()
dist.barrier()  # HERE
