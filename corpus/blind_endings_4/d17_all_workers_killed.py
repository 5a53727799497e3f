"""All workers of the loader are killed at once, with batches still prefetched."""

import os
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return torch.full((6,), index / 4000)


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Noise(), batch_size=8, num_workers=2, prefetch_factor=4, persistent_workers=True
    )
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(loader)
    for step in range(400):
        x = next(batches)  # HERE
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()  # HERE
        time.sleep(0.005)  # HERE
        if step == 120:
            for worker in batches._workers:
                os.kill(worker.pid, signal.SIGKILL)  # HERE


if __name__ == "__main__":
    main()
