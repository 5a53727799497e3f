"""Threads raise; one error is read from its future, one is only printed."""

import concurrent.futures
import threading

import torch
from torch import nn


def upload(number):
    if number % 3 == 1:
        raise ConnectionError(f"upload {number} failed")
    return number


torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
futures = []
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for step in range(120):
        x = torch.randn(32, 6)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            futures.append(pool.submit(upload, step // 20))
        if step == 90:
            thread = threading.Thread(target=upload, args=(1,))
            thread.start()
            thread.join()
print([future.exception() for future in futures])
