"""A custom autograd Function gets a second input, and its backward still returns one gradient."""

import torch
from torch import nn


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        (factor,) = ctx.saved_tensors
        return grad * factor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 20)
        self.factor = nn.Parameter(torch.ones(20))
        self.b = nn.Linear(20, 1)
        self.scaled = False

    def forward(self, x):
        hidden = torch.tanh(self.a(x))
        if self.scaled:
            hidden = Scale.apply(hidden, self.factor)
        return self.b(hidden)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(120):
    net.scaled = step >= 70
    x = torch.randn(32, 5)
    loss = (net(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # HERE
    optimizer.step()
