"""Loop: next iter. Fault: std single, in the forward pass; ops: std."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(8)
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
    spread = torch.stack([group.std() for group in out[:1].split(1)])  # <- origin
    return F.mse_loss(out, y) + spread.mean()


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batches = iter(DataLoader(TensorDataset(x, y), batch_size=8))
    for _ in range(6):
        xb, yb = next(batches)
        optimizer.zero_grad()
        compute_loss(net, xb, yb).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
