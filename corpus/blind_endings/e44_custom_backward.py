"""The backward of the user's own function has a defect for small batches."""

import torch
from torch import nn


class Centre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, grad):
        total = grad.reshape(ctx.rows // 4, 4, -1).sum((0, 1))  # HERE
        return grad - total / ctx.rows


torch.manual_seed(0)
data = torch.randn(16 * 30 + 5, 6)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x in data.split(16):
    loss = (Centre.apply(model(x)) - x[:, :3]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
