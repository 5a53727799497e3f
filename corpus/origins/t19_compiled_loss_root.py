"""Loop: the loss is compiled, for over shuffled rows.

Fault: square root of 0, in the backward pass; ops: sqrt.
"""

import torch
from torch import nn

torch.manual_seed(419)
net = nn.Linear(6, 4, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
points = torch.randn(48, 6)
points[30] = 0.0


@torch.compile(backend="aot_eager")
def loss_of(x):
    squares = net(x).square().sum(dim=1)
    radius = torch.sqrt(squares)  # <- origin
    return (radius - 1).square().mean()


for rows in torch.arange(48).split(8):
    loss = loss_of(points[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
