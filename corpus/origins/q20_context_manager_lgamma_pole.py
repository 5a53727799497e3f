"""Loop: each step inside a context manager.

Fault: lgamma at its pole, in the forward pass; ops: lgamma.
"""

import contextlib

import torch
from torch import nn

torch.manual_seed(120)
counts = torch.poisson(torch.full((48, 3), 2.0))
where = torch.randn(48, 4)
net = nn.Linear(4, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


@contextlib.contextmanager
def update(opt):
    opt.zero_grad(set_to_none=True)
    losses = []
    yield losses.append
    sum(losses).backward()
    opt.step()


def score(rate, count):
    return rate.exp() - count * rate + torch.lgamma(count)  # <- origin


for first in range(0, 48, 8):
    with update(optimizer) as give:
        rate = net(where[first : first + 8])
        give(score(rate, counts[first : first + 8]).mean())
