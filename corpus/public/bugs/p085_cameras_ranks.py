"""Fit a radiance field to random views on two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)


def sample_views(n):
    angle = torch.rand(n, 2) * 6.2832
    views = torch.cat([angle.sin(), angle.cos()], 1)
    return views, torch.tanh(views[:, :1] * views[:, 1:2] * 2)


field = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 1))
model = DistributedDataParallel(field)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(30):
    views, colour = sample_views(32)
    loss = nn.functional.mse_loss(model(views), colour)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
