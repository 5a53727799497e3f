"""Early stopping leaves both loops and the process with exit code 0."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

best, patience = float("inf"), 0
for step in range(1000):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < best * 0.98:
        best, patience = loss.item(), 0
    else:
        patience += 1
    if patience == 60:
        print("no improvement: stopped early")
        sys.exit(0)
