"""The script's own watchdog thread ends the process with os._exit(3)."""

import os
import threading
import time

import torch
from torch import nn


class Budget(threading.Thread):
    def __init__(self, seconds):
        super().__init__(daemon=True)
        self.seconds = seconds

    def run(self):
        time.sleep(self.seconds)
        print("the budget is used up")
        os._exit(3)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100_000):
    x = torch.randn(8, 6)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 20:
        Budget(1.5).start()
