"""A preempted node: the whole group gets SIGTERM while workers load; the script has no handler."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, number):
        time.sleep(0.001)
        return torch.full((6,), (number % 11) / 11)


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Slow(), batch_size=8, num_workers=2, persistent_workers=True)
    for step, x in enumerate(loader):
        loss = (model(x) - x.sum(1, keepdim=True) / 6).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 120:
            print("signal me", flush=True)


if __name__ == "__main__":
    main()
