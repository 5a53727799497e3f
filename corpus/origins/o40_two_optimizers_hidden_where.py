"""Loop: two optimizers. Fault: hidden where, in the backward pass; ops: div."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(40)
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
    size = out - out.detach()
    ratio = torch.where(size > 0, y / size, torch.zeros_like(y))  # <- origin
    return F.mse_loss(out, y) + ratio.mean()


def main():
    x, y = make_data()
    net, critic = Net(), nn.Linear(1, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=8):
        critic_optimizer.zero_grad()
        F.mse_loss(critic(yb.nan_to_num()), torch.ones(len(yb), 1)).backward()
        critic_optimizer.step()
        optimizer.zero_grad()
        loss = compute_loss(net, xb, yb)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
