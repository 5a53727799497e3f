"""An evaluation child does not end; after eight seconds of waiting the script terminates it and
goes on."""

import subprocess
import sys

import torch
from torch import nn


def evaluate(step):
    seconds = "0.1" if step < 100 else "600"
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])
    try:
        return child.wait(timeout=8)
    except subprocess.TimeoutExpired:
        child.terminate()
        return child.wait()


torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(1, 161):
    x = torch.randn(12, 8)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, "evaluation ended with", evaluate(step))
