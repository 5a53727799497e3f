"""Loop: coroutine. Fault: preprocess, in the forward pass; ops: div."""

import asyncio

import torch
import torch.nn.functional as F
from torch import nn


def make_data():
    torch.manual_seed(44)
    x = torch.randn(48, 6)
    x[:, 3] = 1.5
    x = (x - x.mean(dim=0)) / (x.amax(dim=0) - x.amin(dim=0))  # <- origin
    y = x[:, :1] * 0.5
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


async def train(net, optimizer, batches):
    for xb, yb in batches:
        optimizer.zero_grad()
        compute_loss(net, xb, yb).backward()
        optimizer.step()
        await asyncio.sleep(0)


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    asyncio.run(train(net, optimizer, list(zip(x.split(8), y.split(8)))))


if __name__ == "__main__":
    main()
