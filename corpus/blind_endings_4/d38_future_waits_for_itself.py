"""A job of a pool with one thread submits another job to the same pool and waits for it."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

pool = ThreadPoolExecutor(1, thread_name_prefix="writer")


def write(rows):
    return len(rows)


def flush(rows):
    print("hangs now", flush=True)
    return pool.submit(write, rows).result()  # HERE


def main():
    torch.manual_seed(0)
    model, rows = nn.Linear(6, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 300):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        rows.append(step)
        if step == 100:
            pool.submit(flush, rows).result()  # HERE


if __name__ == "__main__":
    main()
