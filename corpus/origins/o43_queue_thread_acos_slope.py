"""Loop: queue thread. Fault: acos slope, in the backward pass; ops: acos."""

import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn


def make_data():
    torch.manual_seed(43)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = F.normalize(self.body(x), dim=1)
        cosine = (h * h).sum(dim=1, keepdim=True).clamp(-1.0, 1.0)
        angle = torch.acos(cosine)  # <- origin
        return self.head(h) + angle


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


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


if __name__ == "__main__":
    main()
