"""A limit of the file size: the last checkpoint does not fit."""

import os
import resource
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(256, 256)
optimizer = torch.optim.AdamW(model.parameters())
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
path = os.path.join(tempfile.mkdtemp(), "last.pt")
for step in range(30):
    x = torch.randn(8, 256)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save([model.state_dict(), optimizer.state_dict()], path)  # HERE
