"""A checkpoint takes 25 seconds to write (a slow network disk)."""

import tempfile
import time

import torch
from torch import nn


class SlowFile:
    def __init__(self, path):
        self.file = open(path, "wb")  # noqa: SIM115

    def write(self, data):
        time.sleep(2)
        return self.file.write(data)

    def flush(self):
        self.file.flush()


torch.manual_seed(0)
folder = tempfile.mkdtemp()
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(200):
    x = torch.randn(32, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)
    if step == 150:
        torch.save(model.state_dict(), SlowFile(f"{folder}/model.pt"))
