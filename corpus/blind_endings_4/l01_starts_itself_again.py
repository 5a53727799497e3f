"""The script replaces its process by a fresh one (os.execv) after the first phase, and finishes."""

import os
import sys

import torch
from torch import nn


def phase(steps):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "phase.pt")


if __name__ == "__main__":
    torch.manual_seed(0)
    phase(80)
    if "SECOND_PHASE" not in os.environ:
        os.environ["SECOND_PHASE"] = "1"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, os.path.abspath(__file__)])
    print("both phases are done")
