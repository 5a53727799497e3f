"""A cache of features grows until a MemoryError, under RLIMIT_AS."""

import resource

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
cache = []
for step in range(400):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5:
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
    if step > 5:
        cache.append(bytearray(64 << 20))  # HERE
