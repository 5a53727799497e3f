"""A history that is never emptied, under a limit of the address space."""

import resource

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
resource.setrlimit(resource.RLIMIT_AS, (used + (1500 << 20), resource.RLIM_INFINITY))
history = []
for _step in range(400):
    x = torch.randn(32, 64)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(torch.ones(4 << 20))  # HERE
