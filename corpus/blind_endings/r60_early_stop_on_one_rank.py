"""Each rank of 4 decides alone to stop early, and then waits in a barrier."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(300):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()
        time.sleep(0.01)
        if rank == 0 and step == 130:
            print("hangs now", flush=True)
            break
    dist.barrier()  # HERE
    if rank == 0:
        print("saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
