"""Loop: enumerate over zip of two lists.

Fault: the backward pass of the user's own Function divides by 0; ops: div.
"""

import torch
from torch import nn


class Length(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        length = x.square().sum(dim=-1, keepdim=True).sqrt()
        ctx.save_for_backward(x, length)
        return length

    @staticmethod
    def backward(ctx, gradient):
        x, length = ctx.saved_tensors
        return gradient * (x / length)  # <- origin


torch.manual_seed(330)
steps = list(torch.randn(6, 8, 4))
steps[3][5] = 0.0
sizes = list(torch.rand(6, 8, 1))
net = nn.Linear(4, 3, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
total = 0.0
for number, (step, size) in enumerate(zip(steps, sizes, strict=True)):
    loss = (Length.apply(net(step)) - size).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item() / (number + 1)
