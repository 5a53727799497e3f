"""A search for the largest batch catches the errors of the allocator, then trains."""

import torch
from torch import nn


def fits(model, rows):
    try:
        model(torch.empty(rows, 64)).sum().backward()
    except (RuntimeError, MemoryError):
        return False
    finally:
        model.zero_grad()
    return True


torch.manual_seed(0)
model = nn.Linear(64, 1)
rows = 1 << 40
while not fits(model, rows):
    rows = min(rows >> 4, 1 << 12) if rows < 1 << 38 else rows >> 2
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(100):
    x = torch.randn(min(rows, 64), 64)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("batch", rows)
