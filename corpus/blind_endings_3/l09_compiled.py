"""torch.compile with the eager backend; a slow set-up in the first forward pass."""

import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 2))

    def forward(self, x):
        return self.body(x)


def main():
    torch.manual_seed(0)
    net = Model()
    model = torch.compile(net, backend="eager")
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(150):
        x = torch.randn(33 if step % 50 == 49 else 64, 6)
        if step == 0:
            time.sleep(12)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
