"""Three ranks, a group of ranks 1 and 2: rank 2 leaves out one reduction in it."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def accuracy(hits, group):
    dist.all_reduce(hits, group=group)  # HERE
    return hits.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group([1, 2])
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
        if step % 40 == 20 and rank > 0:
            if step == 100 and rank == 2:
                print("hangs now", flush=True)
                continue
            accuracy(torch.tensor([float(rank)]), group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
