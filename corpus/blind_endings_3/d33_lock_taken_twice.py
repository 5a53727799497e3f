"""A metric store takes its lock, and calls a method that takes it again."""

import threading
import time

import torch
from torch import nn


class Metrics:
    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}

    def add(self, name, value):
        with self.lock:
            self.values.setdefault(name, []).append(value)
            if len(self.values[name]) == 80:
                self.flush(name)  # HERE

    def flush(self, name):
        print("hangs now", flush=True)
        with self.lock:  # HERE
            self.values[name] = self.values[name][-10:]


def main():
    torch.manual_seed(0)
    metrics = Metrics()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(300):
        x = torch.randn(16, 6)
        loss = nn.functional.cross_entropy(model(x), (x[:, 1] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.add("loss", loss.item())
        time.sleep(0.01)


if __name__ == "__main__":
    main()
