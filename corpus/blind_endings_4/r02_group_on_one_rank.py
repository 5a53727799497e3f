"""A process group for the metrics is made on rank 0 alone; making one needs every rank."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def metrics_group():
    print("hangs now", flush=True)
    return dist.new_group([0])  # HERE


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(200):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if step == 80 and rank == 0:
            metrics_group()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
