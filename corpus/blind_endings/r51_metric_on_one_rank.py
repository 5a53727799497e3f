"""Rank 0 alone reduces a metric; rank 1 goes on to the next step."""

import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


def average_gradients():
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # HERE
        parameter.grad /= dist.get_world_size()


for step in range(300):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    average_gradients()
    optimizer.step()
    time.sleep(0.01)
    if step == 120 and rank == 0:
        print("hangs now", flush=True)
        metric = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(metric, loss.detach().reshape(1))  # HERE
dist.destroy_process_group()
