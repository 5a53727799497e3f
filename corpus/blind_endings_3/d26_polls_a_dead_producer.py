"""The producer thread has died; the loop polls its queue and goes on waiting."""

import queue
import threading
import time

import torch
from torch import nn


class Producer(threading.Thread):
    def __init__(self, batches):
        super().__init__(daemon=True, name="producer")
        self.batches = batches

    def run(self):
        for number in range(200):
            x = torch.randn(16, 6)
            if number == 90:
                print("hangs now", flush=True)
                x = x.reshape(16, 7)  # HERE
            self.batches.put(x)
            time.sleep(0.01)


def next_batch(batches):
    while True:
        try:
            return batches.get(timeout=0.5)  # HERE
        except queue.Empty:
            continue


def main():
    torch.manual_seed(0)
    batches = queue.Queue(maxsize=4)
    Producer(batches).start()
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(200):
        x = next_batch(batches)  # HERE
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
