"""Loop: while with an assignment expression.

Fault: log1p of -1, in the forward pass; ops: log1p.
"""

import torch
from torch import nn

torch.manual_seed(201)
rows = torch.randn(48, 5)
sure = torch.rand(48, 1) * 0.9
sure[28] = 1.0
net = nn.Linear(5, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
source = iter(zip(rows.split(8), sure.split(8)))
while (pair := next(source, None)) is not None:
    row, p = pair
    miss = torch.log1p(-p)  # <- origin
    loss = (torch.sigmoid(net(row)) * miss).neg().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
