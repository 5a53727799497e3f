"""Two ranks that make different calls on purpose: a pipeline with send and recv."""

import torch
import torch.distributed as dist
from torch import nn


def first_stage(steps):
    stage = nn.Linear(6, 12)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.02)
    for _ in range(steps):
        x = torch.randn(16, 6)
        hidden = stage(x)
        dist.send(hidden.detach(), dst=1)
        dist.send(x.sum(1), dst=1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, src=1)
        optimizer.zero_grad()
        hidden.backward(gradient)
        optimizer.step()


def last_stage(steps):
    stage = nn.Sequential(nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.02)
    for _ in range(steps):
        hidden, target = torch.empty(16, 12), torch.empty(16)
        dist.recv(hidden, src=0)
        dist.recv(target, src=0)
        hidden.requires_grad_()
        loss = (stage(hidden).squeeze(1) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.send(hidden.grad, dst=0)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    (first_stage if dist.get_rank() == 0 else last_stage)(120)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
