"""The evaluation is a numpy computation of twenty seconds after a training of fast steps; then
it goes on."""

import time

import numpy as np
import torch
from torch import nn


def bootstrap(values, seconds):
    rng, means = np.random.default_rng(0), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        means.append(rng.choice(values, len(values)).mean())
    return np.percentile(means, [5, 95])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for phase in range(2):
    losses = []
    for _ in range(80):
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(phase, bootstrap(np.array(losses), 20 if phase == 0 else 1))
