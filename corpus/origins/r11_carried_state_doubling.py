"""Loop: batches of a stream, with a state that is carried on.

Fault: a state that grows until it overflows, in the forward pass; ops: mul.
"""

import torch
from torch import nn

torch.manual_seed(211)
cell = nn.Linear(4, 6)
head = nn.Linear(6, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=1e-4)
state = torch.ones(8, 6)
for batch in torch.randn(56, 4).split(8):
    state = state.detach() * 3e9  # <- origin
    mixed = torch.tanh(cell(batch) + state / state.abs().max())
    loss = head(mixed).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
