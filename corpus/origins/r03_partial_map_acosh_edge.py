"""Loop: map over a functools.partial.

Fault: acosh of 1, in the backward pass; ops: acosh.
"""

import functools

import torch
from torch import nn

torch.manual_seed(203)
points = torch.randn(48, 2)
points[33] = 0.0


class Turn(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, point):
        moved = point * self.scale
        return torch.acosh(1 + moved.square().sum(dim=1))  # <- origin


def learn(net, optimizer, point):
    optimizer.zero_grad()
    loss = net(point).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


turn = Turn()
train = functools.partial(learn, turn, torch.optim.SGD(turn.parameters(), lr=1e-3))
history = list(map(train, points.split(8)))
