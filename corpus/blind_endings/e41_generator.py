"""A generator of batches raises."""

import torch
from torch import nn


def batches(count):
    offsets = list(range(0, count * 16, 16))
    source = torch.randn(count * 16, 6)
    for number in range(count + 1):
        start = offsets[number]  # HERE
        yield source[start : start + 16]


torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x in batches(45):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
