"""The thread that fills the queue raises; the loop waits for the queue for ever."""

import queue
import threading
import time

import torch
from torch import nn

batches = queue.Queue(maxsize=4)
weights = {number: 1.0 for number in range(180)}


def fill():
    for number in range(400):
        if number not in weights:
            print("hangs now", flush=True)
        scale = weights[number]  # HERE
        batches.put(torch.randn(16, 8) * scale)


def main():
    torch.manual_seed(0)
    threading.Thread(target=fill, daemon=True).start()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(400):
        x = batches.get()  # HERE
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)


main()
