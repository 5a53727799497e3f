"""A lambda as collate_fn, in a worker, meets a record without its key."""

import torch
from torch import nn
from torch.utils.data import DataLoader

records = [{"x": torch.randn(8), "y": torch.randn(1)} for _ in range(320)]
del records[200]["y"]
torch.manual_seed(0)
loader = DataLoader(
    records,
    batch_size=16,
    num_workers=1,
    collate_fn=lambda rows: tuple(torch.stack([row[k] for row in rows]) for k in "xy"),  # HERE
)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
