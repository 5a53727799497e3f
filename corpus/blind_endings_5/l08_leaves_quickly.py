"""After a good training with workers still alive the script leaves with os._exit(0), buffers
flushed."""

import itertools
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    x = torch.randn(900, 5)
    loader = DataLoader(
        TensorDataset(x, x.sum(1, keepdim=True)),
        batch_size=15,
        num_workers=2,
        persistent_workers=True,
    )
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for inputs, targets in itertools.islice(loader, 45):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("done")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
