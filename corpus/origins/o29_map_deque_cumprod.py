"""Loop: map deque. Fault: cumprod, in the forward pass; ops: cumprod."""

import collections

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(29)
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
    odds = (1.0 + out.abs() * 60.0).repeat(1, 40).cumprod(dim=1)  # <- origin
    return F.mse_loss(out, y) + odds[:, -1].mean()


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)

    def train(batch):
        optimizer.zero_grad()
        compute_loss(net, *batch).backward()
        optimizer.step()

    collections.deque(map(train, DataLoader(TensorDataset(x, y), batch_size=8)), maxlen=0)


if __name__ == "__main__":
    main()
