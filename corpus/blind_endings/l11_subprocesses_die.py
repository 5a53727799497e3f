"""Subprocesses fail and crash; the training does not depend on them."""

import ctypes
import multiprocessing
import subprocess
import sys

import torch
from torch import nn


def crash():
    ctypes.string_at(0)


def fail():
    raise ValueError("a helper failed")


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        x = torch.randn(32, 6)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30:
            subprocess.run([sys.executable, "-c", "raise SystemExit(4)"], check=False)
            subprocess.run(["sh", "-c", "kill -9 $$"], check=False)
        if step == 60:
            for target in (crash, fail):
                process = multiprocessing.get_context("fork").Process(target=target)
                process.start()
                process.join()
                print(target.__name__, process.exitcode)


if __name__ == "__main__":
    main()
