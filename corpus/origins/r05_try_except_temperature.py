"""Loop: for with try and finally.

Fault: a temperature that is annealed to 0, in the forward pass; ops: div.
"""

import torch
from torch import nn

torch.manual_seed(205)
rows = torch.randn(48, 4)
marks = torch.randint(0, 3, (48,))
net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
temperature = torch.tensor(1.0)
done = 0
for row, mark in zip(rows.split(8), marks.split(8)):
    try:
        chance = (net(row) / temperature).softmax(dim=1)  # <- origin
        loss = -chance.gather(1, mark[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    finally:
        done += 1
        temperature = temperature - 0.25
