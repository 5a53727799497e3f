"""Loop: each step is a task of a thread pool.

Fault: root of a variance that rounding makes negative, in the forward pass; ops: sqrt.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(202)
waves = torch.randn(40, 16)
waves[25] = 1000.1
net = nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)


def spread(wave):
    mean = wave.mean(dim=1, keepdim=True)
    return torch.sqrt(wave.square().mean(dim=1, keepdim=True) - mean * mean - 1e-2)  # <- origin


def step(wave):
    optimizer.zero_grad()
    loss = (net(spread(wave * 3)) - 1).abs().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with ThreadPoolExecutor(1) as pool:
    losses = [task.result() for task in [pool.submit(step, wave) for wave in waves.split(8)]]
