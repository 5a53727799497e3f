"""Every epoch is cut short while the workers still load; they are stopped and started again."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=generator)
        return x, (x[0] > 0).long()


def main():
    torch.manual_seed(0)
    loader = DataLoader(Rows(), batch_size=16, num_workers=2, shuffle=True)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _epoch in range(3):
        for x, y in itertools.islice(loader, 40):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        iterator = iter(loader)
        next(iterator)
        del iterator


if __name__ == "__main__":
    main()
