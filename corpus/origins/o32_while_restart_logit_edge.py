"""Loop: while restart. Fault: logit edge, in the forward pass; ops: logit."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(32)
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
    p = torch.sigmoid(net(x) * 300.0)
    return (torch.logit(p) * 1e-3 - y).square().mean()  # <- origin


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
