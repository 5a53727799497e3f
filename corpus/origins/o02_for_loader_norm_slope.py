"""Loop: for loader. Fault: norm slope, in the backward pass; ops: pow."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(2)
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
    residual = (out - out.detach()).square().sum(dim=1)
    penalty = residual.pow(0.5)  # <- origin
    return F.mse_loss(out, y) + penalty.mean()


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=8):
        loss = compute_loss(net, xb, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
