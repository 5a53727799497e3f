"""Another process holds a file lock for twelve seconds; the run waits for it and goes on."""

import fcntl
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(12)
"""


def append(path, text):
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(path, "a") as out:
            out.write(text + "\n")


def main():
    table = tempfile.mkstemp()[1]
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(200):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
        if step == 100:
            holder = subprocess.Popen(
                [sys.executable, "-c", HOLDER, table + ".lock"], stdout=subprocess.PIPE
            )
            holder.stdout.readline()
            append(table, f"{step} {loss.item()}")
            holder.wait()


if __name__ == "__main__":
    main()
