"""Two ranks: rank 0 saves for a while, rank 1 waits for it at a barrier, as it should."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, path):
    torch.save(model.module.state_dict(), path)
    time.sleep(4)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        for _ in range(40):
            x = torch.randn(16, 6)
            loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.005)
        if rank == 0:
            save(model, f"epoch{epoch}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
