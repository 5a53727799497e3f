"""Steps are counted, epochs are not: islice over an endless chain of a loader with workers."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    loader = DataLoader(
        TensorDataset(x, x.sum(1)), batch_size=16, num_workers=2, persistent_workers=True
    )
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = endless(loader)
    for inputs, targets in itertools.islice(batches, 70):
        loss = (model(inputs).squeeze(1) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batches.close()
    del loader


if __name__ == "__main__":
    main()
