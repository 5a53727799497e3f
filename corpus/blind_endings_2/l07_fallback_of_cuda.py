"""A call of .cuda() fails and the script falls back to the CPU."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
try:
    model = model.to("cuda:7")
except (AssertionError, RuntimeError) as error:
    print("no such device, on the CPU instead:", str(error)[:60])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
