"""A checkpoint is written beside its name and renamed; the name is a folder."""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn


def save(state, path):
    beside = path.with_suffix(".part")
    torch.save(state, beside)
    os.replace(beside, path)  # HERE


def main():
    folder = Path(tempfile.mkdtemp())
    (folder / "epoch2.pt" / "shards").mkdir(parents=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        for _ in range(25):
            x = torch.randn(32, 16)
            loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        save({"epoch": epoch, "model": model.state_dict()}, folder / f"epoch{epoch}.pt")


if __name__ == "__main__":
    main()
