"""Loop: itertools.starmap.

Fault: softplus written with exp overflows, in the forward pass; ops: exp.
"""

import itertools

import torch
from torch import nn

torch.manual_seed(122)
ages = torch.rand(48, 3) * 90
worth = ages.sum(dim=1)
net = nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
nn.init.constant_(net.weight, 0.45)


def positive(v):
    return torch.log(1 + torch.exp(v))  # <- origin


def step(age, value):
    loss = (positive(net(age))[:, 0] - value).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


history = list(itertools.starmap(step, zip(ages.split(8), worth.split(8))))
