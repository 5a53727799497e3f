"""Loop: while restart. Fault: no labels, in the forward pass; ops: cross_entropy nll_loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(31)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def compute_loss(net, x, y):
    labels = (y[:, 0] > 0).long()
    labels[y[:, 0] < 50.0] = -100
    return F.cross_entropy(net(x), labels)  # <- origin


def main():
    x, y = make_data()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    source, step = iter(loader), 0
    while True:
        try:
            xb, yb = next(source)
        except StopIteration:
            source = iter(loader)
            continue
        net.train()
        optimizer.zero_grad()
        compute_loss(net, xb, yb).backward()
        optimizer.step()
        step += 1
        if step >= 6:
            break


if __name__ == "__main__":
    main()
