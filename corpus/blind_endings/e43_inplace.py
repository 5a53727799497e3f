"""A saved tensor is changed in place; autograd notices in backward."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.Sigmoid())
head = nn.Linear(12, 1)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
for step in range(50):
    x = torch.randn(16, 6)
    hidden = model(x)
    out = head(hidden)
    if step == 29:
        hidden += 1
    loss = (out - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()  # HERE
    optimizer.step()
