"""A guard of the user's own gives up with a text: sys.exit("...")."""

import sys

import torch
from torch import nn


def assert_still_useful(history):
    if len(history) >= 60 and history[-1] > 0.0:
        sys.exit(f"validation loss {history[-1]:.2f} is not good enough, giving up")  # HERE


def main():
    torch.manual_seed(2)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    for _ in range(200):
        x = torch.randn(16, 8)
        loss = (model(x) - x.mean(1, keepdim=True)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item() + 1.0)
        assert_still_useful(history)


if __name__ == "__main__":
    main()
