"""The script gives up with status 3 when validation is too bad."""

import sys

import torch
from torch import nn

GIVE_UP = 3


def run_epoch(model, optimizer, x, y):
    for start in range(0, len(x), 25):
        rows = slice(start, start + 25)
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(model):
    with torch.no_grad():
        x = torch.randn(100, 3) * 4
        return nn.functional.mse_loss(model(x), x.prod(1, keepdim=True)).item()


def main():
    torch.manual_seed(0)
    x = torch.randn(500, 3)
    y = x.prod(1, keepdim=True)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(6):
        run_epoch(model, optimizer, x, y)
        error = validate(model)
        print("epoch", epoch, "validation", error)
        if epoch == 4 and error > 0.01:
            print("not good enough, giving up", file=sys.stderr)
            sys.exit(GIVE_UP)  # HERE


if __name__ == "__main__":
    main()
