"""Loop: next(it) with a default, until it is None.

Fault: log of a rate that relu made 0, in the forward pass; ops: log.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(402)
x = torch.rand(48, 4) + 0.2
counts = torch.poisson(torch.full((48,), 3.0)) + 1
x[27] *= -40.0
net = nn.Linear(4, 1)
with torch.no_grad():
    net.weight.fill_(0.5)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def negative_log_likelihood(rate, count):
    # without the constant term
    return (rate - count * torch.log(rate)).mean()  # <- origin


it = iter(DataLoader(TensorDataset(x, counts), batch_size=8))
batch = next(it, None)
while batch is not None:
    features, count = batch
    rate = net(features).squeeze(-1).relu()
    loss = negative_log_likelihood(rate, count)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    batch = next(it, None)
