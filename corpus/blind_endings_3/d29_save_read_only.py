"""Checkpoints go below a file system that takes no files."""

import pathlib

import torch
from torch import nn

FOLDER = pathlib.Path("/proc/sys")


def save_checkpoint(model, step):
    path = FOLDER / f"model-{step:05d}.pt"
    torch.save({"step": step, "state_dict": model.state_dict()}, path)  # HERE


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(1, 500):
        x = torch.randn(20, 8)
        y = x[:, :4].argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 75 == 0:
            save_checkpoint(model, step)


if __name__ == "__main__":
    main()
