"""Loop: queue thread. Fault: projection, in the forward pass; ops: div."""

import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn


def make_data():
    torch.manual_seed(41)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


def after_step(net):
    with torch.no_grad():
        for p in net.body.parameters():
            if p.ndim == 2:
                row = (p - p).norm(dim=1, keepdim=True)
                p.div_(row)  # <- origin


def main():
    x, y = make_data()
    ready = queue.Queue(maxsize=2)

    def fill():
        for batch in zip(x.split(8), y.split(8)):
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    while (batch := ready.get()) is not None:
        optimizer.zero_grad()
        compute_loss(net, *batch).backward()
        optimizer.step()
        after_step(net)


if __name__ == "__main__":
    main()
