"""Distil the answers of a larger network into a small one."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
big = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5)).requires_grad_(False)
small = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5))
optimizer = torch.optim.Adam(small.parameters(), lr=5e-3)
for step in range(60):
    images = torch.randn(48, 16)
    out = small(images)
    student = F.softmax(out, dim=1)
    with torch.no_grad():
        teacher = F.softmax(big(images) * 4, dim=1)
    loss = F.kl_div(student, teacher, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
