"""Two locks, taken in two orders by two threads."""

import threading
import time

import torch
from torch import nn

weights_lock = threading.Lock()
metrics_lock = threading.Lock()


def publish(model, stop):
    while not stop.is_set():
        with metrics_lock:
            time.sleep(0.05)
            with weights_lock:
                sum(p.sum().item() for p in model.parameters())
        time.sleep(0.01)


def log(values, value, cross):
    if not cross:
        values.append(value)
        return
    with weights_lock:
        while not metrics_lock.locked():
            time.sleep(0.001)
        print("hangs now", flush=True)
        with metrics_lock:  # HERE
            values.append(value)


def main():
    torch.manual_seed(0)
    model, values = nn.Linear(6, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    threading.Thread(
        target=publish, args=(model, threading.Event()), daemon=True, name="publisher"
    ).start()
    for step in range(300):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(values, loss.item(), cross=step == 90)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
