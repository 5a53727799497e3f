"""Nothing is printed before the end; a step takes longer every 100 steps."""

import logging
import time

import torch
from torch import nn

logging.basicConfig(level=logging.WARNING)
torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(500):
    x = torch.randn(32, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        time.sleep(4)
logging.getLogger(__name__).warning("finished with a loss of %.4f", loss.item())
