"""Helper threads end themselves with sys.exit(1) and SystemExit; only the thread ends."""

import queue
import sys
import threading

import torch
from torch import nn


def producer(out, count):
    for number in range(count):
        out.put(torch.full((10, 4), number / count))
    out.put(None)
    sys.exit(1)


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(3):
    rows = queue.Queue(4)
    thread = threading.Thread(target=producer, args=(rows, 40))
    thread.start()
    while (x := rows.get()) is not None:
        loss = nn.functional.mse_loss(model(x), 1 - x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    thread.join()
