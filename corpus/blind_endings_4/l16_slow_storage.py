"""The checkpoint goes to storage that takes a quarter of a minute, without work or disk traffic."""

import io
import time

import torch
from torch import nn


class SlowFile(io.RawIOBase):
    """Accepts everything, and sleeps where a network file system would."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.position = 0

    def writable(self):
        return True

    def write(self, data):
        self.position += len(data)
        return len(data)

    def tell(self):
        return self.position

    def close(self):
        if not self.closed:
            time.sleep(self.seconds)
        super().close()


def save(model, seconds):
    with SlowFile(seconds) as out:
        torch.save(model.state_dict(), out)


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 161):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 80 == 0:
            save(model, 15)


main()
