"""multiprocessing.Pool: a worker is killed during map, which then never returns."""

import multiprocessing
import os
import signal
import time

import torch
from torch import nn


def rouge(job):
    number, text = job
    time.sleep(0.02)
    if number == 13:
        print("hangs now", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return len(set(text)) / len(text)


def evaluate(epoch):
    first = epoch * 5
    jobs = [(first + n, "the cat sat on the mat"[: 5 + n]) for n in range(5)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sum(pool.map(rouge, jobs))  # HERE


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        for _ in range(50):
            x = torch.randn(16, 6)
            loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.005)
        evaluate(epoch)


if __name__ == "__main__":
    main()
