"""Loop: generator. Fault: hidden where, in the backward pass; ops: div."""

import torch
import torch.nn.functional as F
from torch import nn


def make_data():
    torch.manual_seed(18)
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
    out = net(x)
    size = out - out.detach()
    ratio = torch.where(size > 0, y / size, torch.zeros_like(y))  # <- origin
    return F.mse_loss(out, y) + ratio.mean()


def batches(x, y):
    order = torch.randperm(len(x))
    for rows in order.split(8):
        yield x[rows], y[rows]


def losses(net, optimizer, source):
    for xb, yb in source:
        loss = compute_loss(net, xb, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    total = sum(losses(net, optimizer, batches(x, y)))
    print(float(total))


if __name__ == "__main__":
    main()
