"""Loop: for with a hook on an activation.

Fault: a gradient of 0 divided by its length in a hook, in the backward pass; ops: div.
"""

import torch
from torch import nn


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.last = nn.Linear(10, 1)

    def forward(self, x, shown):
        inner = torch.relu(self.first(x))
        inner.register_hook(lambda g: g / g.norm())  # <- origin
        return self.last(inner) * shown


torch.manual_seed(208)
rows = torch.randn(48, 6)
shown = torch.ones(48, 1)
shown[24:32] = 0.0
net = Probe()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for row, mask in zip(rows.split(8), shown.split(8)):
    loss = net(row, mask).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
