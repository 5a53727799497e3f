"""Loop: accumulation over four micro-batches.

Fault: mean over no elements, in the forward pass; ops: mean.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(110)
points = torch.randn(96, 5)
points[40:44, 0] = -1.0
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
parts = 4
optimizer.zero_grad()
for number, (p,) in enumerate(DataLoader(TensorDataset(points), batch_size=4)):
    miss = (model(p)[:, 0] - p[:, 1]).square()
    inside = miss[p[:, 0] > -0.9]
    term = inside.mean()  # <- origin
    (term / parts).backward()
    if (number + 1) % parts == 0:
        optimizer.step()
        optimizer.zero_grad()
