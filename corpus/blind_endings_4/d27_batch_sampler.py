"""A batch sampler sorts by length; its table of lengths is one entry short in the second epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class ByLength(Sampler):
    def __init__(self, lengths, size):
        self.lengths, self.size, self.epoch = lengths, size, 0

    def __iter__(self):
        order = list(range(120))
        if self.epoch:
            order.reverse()
        self.epoch += 1
        for first in range(0, 120, self.size):
            chunk = order[first : first + self.size]
            if self.epoch > 1:
                chunk = [index + (index == 50) * 100 for index in chunk]
            yield sorted(chunk, key=lambda index: self.lengths[index])  # HERE

    def __len__(self):
        return 120 // self.size


def main():
    torch.manual_seed(0)
    x = torch.randn(120, 6)
    loader = DataLoader(TensorDataset(x), batch_sampler=ByLength([k % 9 for k in range(120)], 10))
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        for (batch,) in loader:
            loss = (model(batch).squeeze(1) - batch.sum(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
