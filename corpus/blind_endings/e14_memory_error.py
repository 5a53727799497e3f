"""A metric builds a matrix of all pairs with numpy."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4096, 8)
y = (x.sum(1) > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def pairwise(scores, repeats):
    table = np.zeros((len(scores) * repeats, len(scores) * repeats))  # HERE
    table += scores[:, None]
    return table.mean()


for step in range(64):
    rows = slice(step * 64, step * 64 + 64)
    logits = model(x[rows])
    loss = nn.functional.cross_entropy(logits, y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 40:
        pairwise(logits.detach()[:, 0].numpy(), 1_000_000)
