"""Loop: closure. Fault: preprocess, in the forward pass; ops: div."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(22)
    x = torch.randn(48, 6)
    x[:, 3] = 1.5
    x = (x - x.mean(dim=0)) / (x.amax(dim=0) - x.amin(dim=0))  # <- origin
    y = x[:, :1] * 0.5
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


def main():
    x, y = make_data()
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=8):

        def closure(xb=xb, yb=yb):
            optimizer.zero_grad()
            loss = compute_loss(net, xb, yb)
            loss.backward()
            return loss

        optimizer.step(closure)


if __name__ == "__main__":
    main()
