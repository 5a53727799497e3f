"""Loop: sample losses by vmap over a functional call.

Fault: log of a share of 0, in the forward pass; ops: log.
"""

import torch
from torch import nn
from torch.func import functional_call, vmap

torch.manual_seed(210)
rows = torch.randn(40, 5)
shares = torch.rand(40, 3)
shares[35, 1] = 0.0
net = nn.Linear(5, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def sample_loss(row, share):
    guess = functional_call(net, dict(net.named_parameters()), (row,)).log_softmax(dim=0)
    return (share.log() - guess).abs().mean()  # <- origin


for row, share in zip(rows.split(8), shares.split(8)):
    loss = vmap(sample_loss)(row, share).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
