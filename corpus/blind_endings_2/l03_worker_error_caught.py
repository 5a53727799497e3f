"""A loader of a cache fails in its worker, and is rebuilt without it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 320

    def __getitem__(self, index):
        if self.broken and index == 150:
            raise OSError("stale cache")
        return torch.randn(8)


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
broken = True
for epoch in range(6):
    try:
        for x in DataLoader(Rows(broken), batch_size=16, num_workers=1):
            loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    except OSError:
        print("the cache is stale: reading without it")
        broken = False
