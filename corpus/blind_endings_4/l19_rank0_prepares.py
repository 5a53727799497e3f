"""Two ranks: rank 0 prepares the data for eight seconds, rank 1 waits at a barrier."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def prepare():
    time.sleep(8)
    torch.save(torch.randn(640, 6, generator=torch.Generator().manual_seed(0)), "rows.pt")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        prepare()
    dist.barrier()
    rows = torch.load("rows.pt")[rank::2]
    model = DDP(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x in rows.split(4):
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
