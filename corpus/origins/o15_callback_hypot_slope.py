"""Loop: callback. Fault: hypot slope, in the backward pass; ops: hypot."""

import torch
import torch.nn.functional as F
from torch import nn


def make_data():
    torch.manual_seed(15)
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
    dead = out - out.detach()
    heading = torch.hypot(dead, dead)  # <- origin
    return F.mse_loss(out, y) + heading.mean()


class Events:
    def __init__(self):
        self.handlers = {"batch": [], "end": []}

    def on(self, name):
        return lambda handler: self.handlers[name].append(handler) or handler

    def fire(self, name, *args):
        for handler in self.handlers[name]:
            handler(*args)


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    events = Events()

    @events.on("batch")
    def train(xb, yb):
        optimizer.zero_grad(set_to_none=True)
        compute_loss(net, xb, yb).backward()
        optimizer.step()

    for first in range(0, 48, 8):
        events.fire("batch", x[first : first + 8], y[first : first + 8])
        events.fire("end")


if __name__ == "__main__":
    main()
