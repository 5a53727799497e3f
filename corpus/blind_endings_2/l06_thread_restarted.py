"""A prefetch thread dies and is started again."""

import queue
import threading

import torch
from torch import nn

batches = queue.Queue(maxsize=4)


def fill(start):
    for number in range(start, 200):
        if number == 77 and start == 0:
            raise ConnectionError("the store closed the connection")
        batches.put(torch.randn(16, 8))


torch.manual_seed(0)
thread = threading.Thread(target=fill, args=(0,), daemon=True)
thread.start()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(200):
    while True:
        try:
            x = batches.get(timeout=0.5)
            break
        except queue.Empty:
            thread = threading.Thread(target=fill, args=(77,), daemon=True)
            thread.start()
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
