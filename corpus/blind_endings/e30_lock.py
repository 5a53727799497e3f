"""A callback takes a lock that another thread never gives back."""

import threading
import time

import torch
from torch import nn

lock = threading.Lock()


def holder():
    lock.acquire()
    time.sleep(100_000)


def on_step_end(step):
    if step == 150:
        threading.Thread(target=holder, daemon=True).start()
        time.sleep(0.2)
        print("hangs now", flush=True)
    if step >= 150:
        with lock:  # HERE
            pass


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(300):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    on_step_end(step)
