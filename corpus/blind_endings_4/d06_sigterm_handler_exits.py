"""SIGTERM: the script's own handler saves and leaves with 143, as containers expect."""

import signal
import sys
import time

import torch
from torch import nn

model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def leave(number, frame):
    torch.save(model.state_dict(), "last.pt")
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, leave)
for step in range(4000):
    x = torch.randn(16, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 60:
        print("signal me", flush=True)
