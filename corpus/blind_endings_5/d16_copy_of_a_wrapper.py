"""A wrapper forwards unknown attributes; copy.deepcopy for the moving average never ends in it."""

import copy

import torch
from torch import nn


class Timed:
    def __init__(self, inner):
        self.inner = inner
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)  # HERE

    def __call__(self, x):
        self.calls += 1
        return self.inner(x)


def average(shadow, model, decay=0.99):
    with torch.no_grad():
        for mean, value in zip(shadow.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 1 - decay)


torch.manual_seed(0)
model = Timed(nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
shadow = None
for step in range(100):
    x = torch.randn(30, 5)
    loss = nn.functional.mse_loss(model(x), x.norm(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 60:
        shadow = copy.deepcopy(model)
    if shadow is not None:
        average(shadow, model)
