"""Loop: the user's own isfinite guard skips the batch.

Fault: log of 0, in the forward pass; the statistics of a batch norm go bad; ops: log.
"""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(322)
energies = torch.rand(48, 5) + 0.1
energies[18, 2] = 0.0
net = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
skipped = 0
for energy, y in DataLoader(TensorDataset(energies, torch.randn(48)), batch_size=8):
    level = 10 * energy.log10()  # <- origin
    loss = (net(level)[:, 0] - y).square().mean()
    if not math.isfinite(loss.item()):
        skipped += 1
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
