"""An optimizer of the user's own calls a native kernel, which gets a null pointer in step 52."""

import ctypes

import torch
from torch import nn


class Fused(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self._apply(parameter, group["lr"])
        self.steps += 1

    def _apply(self, parameter, lr):
        address = parameter.grad.data_ptr() if self.steps < 52 else 0
        ctypes.string_at(address, 4)  # HERE
        parameter.add_(parameter.grad, alpha=-lr)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1))
optimizer = Fused(model.parameters(), 0.03)
for _ in range(200):
    x = torch.rand(22, 4)
    loss = nn.functional.l1_loss(model(x), x.var(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
