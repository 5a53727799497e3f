"""Of two persistent workers one waits for a pipe that nobody writes to."""

import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, pipe):
        self.pipe = pipe

    def __len__(self):
        return 600

    def __getitem__(self, index):
        if index == 407:
            print("hangs now", flush=True)
            with open(self.pipe, "rb") as stream:  # HERE
                stream.read()
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=generator)
        return x, x.sum()


def main():
    pipe = os.path.join(tempfile.mkdtemp(), "pipe")
    os.mkfifo(pipe)
    torch.manual_seed(0)
    loader = DataLoader(Rows(pipe), batch_size=10, num_workers=2, persistent_workers=True)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        for x, y in loader:  # HERE
            loss = (model(x).squeeze(1) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)


if __name__ == "__main__":
    main()
