"""Loop: LBFGS with a closure.

Fault: division by a variance that underflows, in the forward pass; ops: div.
"""

import torch
from torch import nn

torch.manual_seed(109)
inputs = torch.randn(30, 4)
wanted = inputs.sum(dim=1)


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(4, 1)
        self.log_scale = nn.Parameter(torch.tensor(-60.0))

    def forward(self, x, y):
        variance = torch.exp(2 * self.log_scale)
        miss = (self.mean(x)[:, 0] - y) ** 2
        return (0.5 * miss / variance + self.log_scale).mean()  # <- origin


model = Gaussian()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
for number in range(4):

    def closure():
        optimizer.zero_grad()
        loss = model(inputs, wanted)
        loss.backward()
        return loss

    optimizer.step(closure)
