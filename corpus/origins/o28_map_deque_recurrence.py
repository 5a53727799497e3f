"""Loop: map deque. Fault: recurrence, in the forward pass; ops: linear add."""

import collections

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(28)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(1, 12)
        self.rec = nn.Linear(12, 12)
        nn.init.orthogonal_(self.rec.weight, gain=40.0)
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        h = torch.zeros(len(x), 12)
        for _ in range(5):
            for t in range(x.shape[1]):
                h = self.inp(x[:, t : t + 1]) + self.rec(h)  # <- origin
        return self.head(h)


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


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
