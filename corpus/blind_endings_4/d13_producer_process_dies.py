"""A process of the user's own prepares batches; it is killed, and the queue stays empty."""

import multiprocessing
import os
import signal
import time

import torch
from torch import nn


def produce(queue):
    generator = torch.Generator().manual_seed(0)
    for number in range(400):
        if number == 100:
            time.sleep(1)
            print("hangs now", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        queue.put(torch.randn(16, 6, generator=generator).numpy())


def main():
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=8)
    context.Process(target=produce, args=(queue,), daemon=True).start()
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(400):
        x = torch.from_numpy(queue.get())  # HERE
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
