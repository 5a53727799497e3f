"""Rank 1 asks for more memory than there is, the other waits for its gradients."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def confusion(classes):
    return np.ones((classes, classes), dtype=np.float64)  # HERE


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
        if step == 60:
            confusion(10 if rank == 0 else 10_000_000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
