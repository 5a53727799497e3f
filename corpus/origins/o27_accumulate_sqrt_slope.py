"""Loop: accumulate. Fault: sqrt slope, in the backward pass; ops: sqrt."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(27)
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


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for number, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), batch_size=4)):
        (compute_loss(net, xb, yb) / 3).backward()
        if number % 3 == 2:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
