"""The loader is behind a generator of the user; its worker is killed."""

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(600):
            if number == 333:
                os.kill(os.getpid(), signal.SIGKILL)  # HERE
            yield torch.randn(8)


def batches(loader):
    while True:
        for x in loader:  # HERE
            yield x / x.norm()


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step, x in enumerate(batches(DataLoader(Stream(), batch_size=8, num_workers=1))):
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 500:
        break
