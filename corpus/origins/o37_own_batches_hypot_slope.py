"""Loop: own batches. Fault: hypot slope, in the backward pass; ops: hypot."""

import torch
import torch.nn.functional as F
from torch import nn


def make_data():
    torch.manual_seed(37)
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


def get_batch(x, y):
    rows = torch.randint(len(x), (8,))
    return x[rows], y[rows]


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    xb, yb = get_batch(x, y)
    for step in range(6):
        loss = compute_loss(net, xb, yb)
        xb, yb = get_batch(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
