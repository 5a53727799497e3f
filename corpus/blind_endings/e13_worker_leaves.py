"""A library in the worker calls os._exit."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(900):
            if number == 610:
                os._exit(7)  # HERE
            yield torch.tensor([number % 11, 1.0]), torch.tensor([float(number % 11)])


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Stream(), batch_size=10, num_workers=1):  # HERE
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
