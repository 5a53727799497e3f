"""Rank 0 sends the new settings with broadcast_object_list when it sees a plateau; rank 1 sees
none."""

import time

import torch
import torch.distributed as dist
from torch import nn


def mean_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)  # HERE
    flat /= dist.get_world_size()
    for parameter, part in zip(
        model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
    ):
        parameter.grad.copy_(part.view_as(parameter))


def share(settings):
    dist.broadcast_object_list(settings, src=0)  # HERE


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(7, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(300):
        x = torch.randn(16, 7) + rank
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        mean_gradients(model)
        optimizer.step()
        time.sleep(0.01)
        plateau = step == 130 and rank == 0
        if plateau:
            print("hangs now", flush=True)
            share([{"lr": 0.005}])  # HERE


if __name__ == "__main__":
    main()
