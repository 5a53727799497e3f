"""A background thread writes the checkpoint; its error arrives with the future."""

import concurrent.futures
import io
import pathlib

import torch
from torch import nn


def write(buffer, path):
    pathlib.Path(path).write_bytes(buffer.getvalue())  # HERE


torch.manual_seed(0)
pool = concurrent.futures.ThreadPoolExecutor(1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
pending = None
for step in range(80):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        if pending is not None:
            pending.result()  # HERE
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        pending = pool.submit(write, buffer, "/dev/full")
