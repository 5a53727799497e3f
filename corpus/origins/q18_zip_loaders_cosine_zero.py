"""Loop: a for over two loaders at once.

Fault: division by the length of a zero vector, in the forward pass; ops: div.
"""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(118)
left = torch.randn(48, 6)
right = torch.randn(32, 6)
right[21] = 0.0
encode = nn.Linear(6, 6, bias=False)
optimizer = torch.optim.Adam(encode.parameters(), lr=1e-3)


def unit(v):
    return v / v.norm(dim=-1, keepdim=True)  # <- origin


many = DataLoader(TensorDataset(left), batch_size=8)
few = DataLoader(TensorDataset(right), batch_size=8)
for (a,), (b,) in zip(many, itertools.cycle(few)):
    alike = unit(encode(a)) @ unit(encode(b)).T
    loss = nn.functional.cross_entropy(alike / 0.5, torch.arange(len(a)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
