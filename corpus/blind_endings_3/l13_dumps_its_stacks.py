"""The script writes its own stacks every two seconds with faulthandler; nothing is wrong."""

import faulthandler
import sys
import time

import torch
from torch import nn

faulthandler.enable()
faulthandler.dump_traceback_later(2, repeat=True, file=sys.stderr)
torch.manual_seed(0)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(250):
    x = torch.randn(16, 5)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
faulthandler.cancel_dump_traceback_later()
