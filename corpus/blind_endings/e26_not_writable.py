"""The path of the checkpoint is on a file system that cannot be written."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
best = float("inf")
for step in range(60):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49 and loss.item() < best:
        best = loss.item()
        torch.save(model.state_dict(), "/proc/best.pt")  # HERE
