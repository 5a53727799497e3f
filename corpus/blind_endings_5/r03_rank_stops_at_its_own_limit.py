"""max_steps is divided by the batch size of the rank: rank 0 leaves with sys.exit(0) long
before rank 1."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    size = 32 if rank == 0 else 16
    model = DDP(nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = 0
    while seen < 3200:
        x = torch.randn(size, 5)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += size
        time.sleep(0.01)
    sys.exit(0)


if __name__ == "__main__":
    main()
