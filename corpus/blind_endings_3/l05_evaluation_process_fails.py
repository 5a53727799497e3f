"""The evaluation runs in a process of its own and fails; the training says so and goes on."""

import subprocess
import sys

import torch
from torch import nn

EVALUATION = "import sys; print('evaluating'); sys.exit('no metric found')"


def evaluate():
    done = subprocess.run([sys.executable, "-c", EVALUATION], check=False)
    if done.returncode:
        print("evaluation failed with", done.returncode)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(1, 181):
    x = torch.randn(20, 7)
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        evaluate()
