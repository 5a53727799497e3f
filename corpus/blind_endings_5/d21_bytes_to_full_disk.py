"""A checkpoint is serialised in memory first, and its bytes are then written to a full device."""

import io
import os

import torch
from torch import nn

TARGET = os.environ.get("BACKUP", "/dev/full")


def serialise(model, optimizer):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    return buffer.getvalue()


def store(data, path):
    with open(path, "wb", buffering=0) as out:
        out.write(data)  # HERE


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(9, 36), nn.Mish(), nn.Linear(36, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, 101):
    x = torch.randn(24, 9)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        store(serialise(model, optimizer), f"step{step}.pt" if step < 80 else TARGET)
