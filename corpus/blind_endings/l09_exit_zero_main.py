"""The usual sys.exit(main())."""

import sys

import torch
from torch import nn


def main(argv):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        x = torch.randn(32, 6)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(argv, loss.item())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
