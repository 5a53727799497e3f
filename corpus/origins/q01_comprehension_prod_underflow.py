"""Loop: list comprehension over a zip.

Fault: log of a product that underflows, in the forward pass; ops: log.
"""

import torch
from torch import nn

torch.manual_seed(101)
words = torch.randint(0, 20, (60, 40))
kinds = torch.randint(0, 3, (60,))
table = nn.Embedding(20, 3)
optimizer = torch.optim.Adam(table.parameters(), lr=1e-2)


def likelihood(ids):
    chances = torch.sigmoid(table(ids) - 3.0)
    joint = chances.prod(dim=1)
    return torch.log(joint)  # <- origin


def train(ids, kind):
    optimizer.zero_grad()
    loss = -likelihood(ids).gather(1, kind[:, None]).mean()
    loss.backward()
    optimizer.step()
    return float(loss)


losses = [train(a, b) for a, b in zip(words.split(10), kinds.split(10))]
