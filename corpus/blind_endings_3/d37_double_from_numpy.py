"""One file of the data holds float64, and the model float32."""

import numpy as np
import torch
from torch import nn


def load_shard(number):
    generator = np.random.default_rng(number)
    rows = generator.normal(size=(200, 7))
    return rows if number == 2 else rows.astype(np.float32)


def batches():
    for number in range(4):
        rows = torch.from_numpy(load_shard(number))
        yield from rows.split(20)


model = nn.Sequential(nn.Linear(6, 10), nn.SiLU(), nn.Linear(10, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
loss_fn = nn.L1Loss()
for batch in batches():
    inputs, target = batch[:, :6], batch[:, 6:] * 0 + batch[:, :1]
    prediction = model(inputs)  # HERE
    loss = loss_fn(prediction, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
