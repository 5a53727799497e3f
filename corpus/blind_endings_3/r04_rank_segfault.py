"""Rank 1 of 2 ends with a segmentation fault in native code."""

import ctypes
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def native_metric(step, rank):
    if rank == 1 and step == 70:
        ctypes.string_at(0)
    return 0.0


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(200):
        x = torch.randn(16, 8)
        loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        native_metric(step, rank)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
