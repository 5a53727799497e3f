"""Loop: recursion over the epochs and the batches.

Fault: arc cosine at 1, in the backward pass; ops: acos.
"""

import torch
from torch import nn

torch.manual_seed(303)
poses = torch.randn(40, 4)
poses[21] *= 500
target = torch.rand(40)
net = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)


def angle(x):
    cosine = torch.tanh(net(x))[:, 0].abs()
    return torch.acos(cosine)  # <- origin


def walk(batches, epochs):
    if not batches:
        return walk(list(range(5)), epochs - 1) if epochs > 1 else None
    first, *rest = batches
    rows = slice(first * 8, first * 8 + 8)
    loss = (angle(poses[rows]) - target[rows]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return walk(rest, epochs)


walk(list(range(5)), 2)
