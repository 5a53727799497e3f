"""A logging thread waits on its queue for ever; it is a daemon, and the program just ends."""

import queue
import threading

import torch
from torch import nn

lines = queue.Queue()


def write_lines():
    with open("log.txt", "w") as out:
        while True:
            out.write(f"{lines.get()}\n")


threading.Thread(target=write_lines, daemon=True).start()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(160):
    x = torch.randn(32, 4)
    loss = nn.functional.huber_loss(model(x).squeeze(1), x.sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lines.put(f"{step} {loss.item():.4f}")
