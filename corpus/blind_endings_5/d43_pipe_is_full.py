"""An external scorer prints more than its pipe can hold, and nobody reads before wait()."""

import subprocess
import sys
import time

import torch
from torch import nn

SCORER = "import sys\nfor i in range(int(sys.argv[1])):\n    print('score', i, 'of a long table')\n"


def score(step):
    child = subprocess.Popen(
        [sys.executable, "-c", SCORER, str(50 if step < 120 else 50_000)], stdout=subprocess.PIPE
    )
    if step >= 120:
        print("hangs now", flush=True)
    child.wait()  # HERE
    return len(child.stdout.readlines())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(1, 400):
    x = torch.randn(16, 6)
    loss = nn.functional.mse_loss(model(x), x.amin(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if step % 40 == 0:
        print("rows", score(step))
