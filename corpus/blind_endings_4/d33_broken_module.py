"""A module of the project that is imported late does not parse."""

import importlib
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

SOURCE = '''"""Losses of the second phase."""


def contrastive(a, b):
    return (a - b).pow(2).mean(

def margin(a, b):
    return (1 - a * b).relu().mean()
'''


def second_phase_loss():
    folder = Path(tempfile.mkdtemp())
    (folder / "phase_losses.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    return importlib.import_module("phase_losses").margin


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_function = nn.functional.mse_loss
    for step in range(100):
        if step == 50:
            loss_function = second_phase_loss()
        x = torch.randn(16, 6)
        loss = loss_function(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
