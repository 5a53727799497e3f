"""Loop: two gloo ranks, gradients averaged by hand.

Fault: log of 0 on the second rank, in the forward pass; ops: log.
"""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def loss_of(model, x):
    level = x.abs().sum(dim=1).log()  # <- origin
    return (model(x)[:, 0] - level).square().mean()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(417)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    data = torch.randn(24, 6)
    if rank == 1:
        data[9] = 0.0
    for x in data.split(8):
        loss = loss_of(model, x)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
    dist.destroy_process_group()
