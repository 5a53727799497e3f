"""The first step takes 25 seconds, as with a compiler."""

import time

import torch
from torch import nn


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.ready = False

    def forward(self, x):
        if not self.ready:
            time.sleep(25)
            self.ready = True
        return self.linear(x)


torch.manual_seed(0)
model = Compiled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(100):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
