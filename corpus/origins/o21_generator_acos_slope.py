"""Loop: generator. Fault: acos slope, in the backward pass; ops: acos."""

import torch
import torch.nn.functional as F
from torch import nn


def make_data():
    torch.manual_seed(21)
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
