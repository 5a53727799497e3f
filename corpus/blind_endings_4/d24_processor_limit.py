"""The limit of processor time is used up: SIGXCPU."""

import resource

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1_000_000):
        if step == 30:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + 3
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 30))
        x = torch.randn(64, 64)
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
