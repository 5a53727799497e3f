"""A worker leaves with os._exit in a loop of next()."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        if index == 400:
            os._exit(7)  # HERE
        return torch.randn(8)


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = iter(DataLoader(Rows(), batch_size=16, num_workers=2))
for step in range(40):
    x = next(batches)  # HERE
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
