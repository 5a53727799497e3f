"""Loop: a generator that yields the losses.

Fault: the slope of a vector of zeros: 0 / 0, in the forward pass; ops: div.
"""

import torch
from torch import nn

torch.manual_seed(304)
state = torch.randn(48, 5)
state[33] = 0.0
heading = torch.rand(48) * 2 - 1


class Mover(nn.Module):
    def __init__(self):
        super().__init__()
        self.velocity = nn.Linear(5, 2, bias=False)

    def forward(self, x):
        v = self.velocity(x)
        return torch.atan(v[:, 1] / v[:, 0])  # <- origin


def losses(model, optimizer, batch_size):
    for begin in range(0, len(state), batch_size):
        x, y = state[begin : begin + batch_size], heading[begin : begin + batch_size]
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


mover = Mover()
print(sum(losses(mover, torch.optim.Adam(mover.parameters(), lr=1e-2), 8)))
