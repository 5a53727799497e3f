"""SIGTERM is a warning here: the handler saves a checkpoint, and the run is allowed to finish."""

import signal
import tempfile
import time

import torch
from torch import nn


class Warned:
    def __init__(self):
        self.flag = False
        signal.signal(signal.SIGTERM, self)

    def __call__(self, number, frame):
        self.flag = True


torch.manual_seed(0)
warned = Warned()
model = nn.Linear(9, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(260):
    x = torch.randn(21, 9)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 80:
        print("signal me", flush=True)
    if warned.flag:
        torch.save(model.state_dict(), tempfile.mkdtemp() + "/warned.pt")
        warned.flag = False
