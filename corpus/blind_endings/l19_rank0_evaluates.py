"""Rank 0 evaluates for 25 seconds; rank 1 waits for it in a barrier, as intended."""

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
        parameter.grad /= 2
    optimizer.step()
    time.sleep(0.01)
    if step % 100 == 99:
        if rank == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(50):
                    model(torch.randn(256, 8))
                    time.sleep(0.5)
            model.train()
        dist.barrier()
dist.destroy_process_group()
