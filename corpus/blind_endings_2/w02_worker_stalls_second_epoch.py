"""A persistent worker waits for a lock file in the second epoch."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 320

    def __getitem__(self, index):
        self.reads += 1
        if self.reads == 500:
            print("hangs now", flush=True)
            while not os.path.exists("/nonexistent/lock"):
                time.sleep(3600)  # HERE
        return torch.randn(8)


torch.manual_seed(0)
loader = DataLoader(Rows(), batch_size=16, num_workers=1, persistent_workers=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    for x in loader:  # HERE
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
