"""next() on an iterator that has no batch left."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
batches = iter(DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=16))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(50):
    (x,) = next(batches)  # HERE
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
