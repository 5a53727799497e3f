"""Loop: a generator that delegates with yield from.

Fault: mean over classes of weight 0, in the forward pass; ops: nll_loss cross_entropy.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(204)
rows = torch.randn(40, 6)
labels = torch.randint(0, 3, (40,))
labels[16:24] = 2
weight = torch.tensor([1.0, 2.0, 0.0])
net = nn.Linear(6, 3)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def train(row, label):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(row), label, weight=weight)  # <- origin
    loss.backward()
    optimizer.step()
    yield loss.item()


def epoch():
    for row, label in zip(rows.split(8), labels.split(8)):
        yield from train(row, label)


total = sum(epoch())
