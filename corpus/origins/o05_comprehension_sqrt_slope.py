"""Loop: comprehension. Fault: sqrt slope, in the backward pass; ops: sqrt."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(5)
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
    distance = (out - out.detach()).square().sum(dim=1)
    return (distance.sqrt() - y[:, 0]).abs().mean()  # <- origin


class Learner:
    def __init__(self):
        x, y = make_data()
        self.loader = DataLoader(TensorDataset(x, y), batch_size=8)
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def step(self, xb, yb):
        self.optimizer.zero_grad()
        loss = compute_loss(self.net, xb, yb)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self):
        return [self.step(*batch) for batch in self.loader]


def main():
    Learner().fit()


if __name__ == "__main__":
    main()
