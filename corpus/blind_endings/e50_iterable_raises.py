"""A streamed data set divides by a length of 0, in a worker."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


def normalise(values, length):
    return [value / length for value in values]  # HERE


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(1000):
            length = 0 if number == 640 else 1 + number % 3
            x = torch.tensor(normalise([1.0, 2.0, number % 4], length))
            yield x, x.sum().reshape(1)


def main():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(Stream(), batch_size=16, num_workers=1):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
