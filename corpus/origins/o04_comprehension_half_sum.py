"""Loop: comprehension. Fault: half sum, in the forward pass; ops: mul sum."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(4)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 64)
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        h = (self.body(x) * 90.0).half()
        power = (h * h * 64).sum(dim=1, keepdim=True)  # <- origin
        return self.head(self.body(x)) + power.float() * 1e-6


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


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
