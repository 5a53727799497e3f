"""Loop: while, with a counter and a patience.

Fault: 1 / 0 for the distance of a point to itself, multiplied by 0; ops: reciprocal.
"""

import torch
from torch import nn

torch.manual_seed(311)
charges = nn.Parameter(torch.randn(9, 3))
stiffness = nn.Parameter(torch.ones(()))
optimizer = torch.optim.Adam([charges, stiffness], lr=1e-2)
same = torch.eye(9, dtype=torch.bool)
best, patience, step = float("inf"), 5, 0
while patience > 0 and step < 12:
    apart = charges[:, None] - charges[None]
    distance = (apart.square().sum(dim=-1) + 1e-12).sqrt()
    distance = distance.masked_fill(same, 0.0)
    force = distance.reciprocal()  # <- origin
    energy = (force * ~same).mean() + stiffness.square() * charges.square().mean()
    optimizer.zero_grad()
    energy.backward()
    optimizer.step()
    patience = 5 if energy.item() < best else patience - 1
    best = min(best, energy.item())
    step += 1
