"""A logger thread dies while it holds the lock that the loop wants."""

import threading
import time

import torch
from torch import nn

lock = threading.Lock()
seen = []


def log():
    while True:
        if len(seen) > 60:
            print("hangs now", flush=True)
            lock.acquire()
            seen[1000]  # HERE
        time.sleep(0.01)


torch.manual_seed(0)
threading.Thread(target=log, daemon=True, name="logger").start()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(2000):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append(loss.item())
    time.sleep(0.02)
    lock.acquire()  # HERE
    lock.release()
