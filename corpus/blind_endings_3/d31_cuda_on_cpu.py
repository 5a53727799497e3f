"""The log line measures time on a GPU; this machine has none."""

import time

import torch
from torch import nn


class Meter:
    def __init__(self, every):
        self.every = every
        self.started = time.time()

    def log(self, step, loss):
        if step % self.every:
            return
        torch.cuda.synchronize()  # HERE
        elapsed = time.time() - self.started
        print(f"{step:5d} loss {loss.item():.3f} {elapsed / self.every * 1e3:.1f} ms")
        self.started = time.time()


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    meter = Meter(every=50)
    for step in range(1, 200):
        x = torch.randn(40, 6, device=device)
        loss = (model(x).squeeze(1) - x[:, 0].abs()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.log(step, loss)


if __name__ == "__main__":
    main()
