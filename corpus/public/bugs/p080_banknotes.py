"""Tell forged banknotes from a table of measurements; the last column is the class."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rng = np.random.default_rng(0)
measured = rng.normal(size=(640, 8)).astype(np.float32)
kind = (measured[:, :3].sum(1) + rng.normal(size=640) > 0).astype(np.float32)
table = np.concatenate([measured, kind[:, None]], 1)

target = table[:, -1]
features = table
data = TensorDataset(torch.from_numpy(features), torch.from_numpy(target))
net = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
