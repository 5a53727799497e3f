"""Rank 0 of 4 waits in a barrier of its checkpoint; the others train on (DDP)."""

import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save(model, folder):
    torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
    print("hangs now", flush=True)
    dist.barrier()  # HERE


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    folder = tempfile.mkdtemp()
    for step in range(300):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()
        time.sleep(0.01)
        if step == 100 and dist.get_rank() == 0:
            save(model, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
