"""A telemetry thread calls into a library that aborts; the main thread is in the middle of
training."""

import ctypes
import threading
import time

import torch
from torch import nn


def telemetry():
    time.sleep(2.0)
    libc = ctypes.CDLL(None)
    libc.abort()  # HERE


def train():
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while True:
        x = torch.randn(64, 12)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)


torch.manual_seed(0)
threading.Thread(target=telemetry, name="telemetry", daemon=True).start()
train()
