"""Loop: ranks. Fault: hidden where, in the backward pass; ops: div."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data():
    torch.manual_seed(62)
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
    torch.distributed.init_process_group("gloo")
    x, y = make_data()
    net = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
    batches = iter(loader)
    for _ in range(3):
        xb, yb = next(batches)
        optimizer.zero_grad()
        compute_loss(net, xb, yb).backward()
        optimizer.step()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
