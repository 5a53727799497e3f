"""A sample fails a check of the data set, in the main process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(800, 6, generator=g)
        self.y = self.x.sum(1, keepdim=True)
        self.sizes = [6] * 800
        self.sizes[611] = 5

    def __len__(self):
        return 800

    def __getitem__(self, i):
        row = self.x[i][: self.sizes[i]]
        if len(row) != 6:
            raise ValueError(f"row has {len(row)} values")  # HERE
        return row, self.y[i]


torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in DataLoader(Rows(), batch_size=20):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
