"""Another process evaluates for 12 seconds while the loop waits."""

import subprocess
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

work = "import time; end = time.time() + 12\nwhile time.time() < end: sum(range(10000))"
for step in range(80):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 40:
        subprocess.run([sys.executable, "-c", work], check=True)
