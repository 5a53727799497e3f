"""Loop: next iter. Fault: masked row, in the forward pass; ops: softmax."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(11)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(6, 8)
        self.key = nn.Linear(6, 8)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).T
        allowed = x[:, :1] * x[:, :1].T > 0.0
        allowed[0] = False
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = torch.softmax(scores, dim=-1)  # <- origin
        return self.head(weights @ x)


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


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
