"""Objects raise in their destructors: Python prints the errors and goes on."""

import torch
from torch import nn


class Handle:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        raise OSError(f"cannot close {self.name}")


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(150):
        handle = Handle(f"file {step}") if step % 50 == 20 else None
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del handle


if __name__ == "__main__":
    main()
