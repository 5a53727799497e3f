"""Two ranks average their weights by hand every ten steps; rank 0 is killed with SIGKILL."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn


def average(model):
    for parameter in model.parameters():
        parts = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, parameter.detach())
        with torch.no_grad():
            parameter.copy_(torch.stack(parts).mean(0))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 400):
        x = torch.randn(12, 8)
        loss = nn.functional.mse_loss(model(x), x[:, 2:4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if step == 95 and dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 10 == 0:
            average(model)


if __name__ == "__main__":
    main()
