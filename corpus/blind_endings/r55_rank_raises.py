"""Rank 1 of 2 meets a bad row; rank 0 waits in backward (DDP)."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rows(rank, step):
    values = torch.randn(16, 8)
    if rank == 1 and step == 90:
        raise ValueError("shard 1 has no row 1440")  # HERE
    return values


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(200):
        x = rows(rank, step)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
