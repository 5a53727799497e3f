"""Regress energy use on weather and calendar features."""

import argparse
import random

import numpy as np
import torch
from torch import nn

SEED = argparse.ArgumentParser()
SEED.add_argument("--seed", type=int, default=0)
SEED = SEED.parse_known_args()[0].seed
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)


def load():
    temperature = np.random.randn(1500)
    hour = np.random.rand(1500) * 2 * np.pi
    weekend = (np.random.rand(1500) < 2 / 7).astype(float)
    wind = np.random.randn(1500)
    use = temperature**2 - 1 + np.sin(hour) - 0.8 * weekend + 0.1 * np.random.randn(1500)
    table = np.stack([temperature, np.sin(hour), np.cos(hour), weekend, wind], axis=1)
    use = (use - use.mean()) / use.std()
    return torch.tensor(table, dtype=torch.float32), torch.tensor(use, dtype=torch.float32)


class Regressor(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.fc1 = nn.Linear(5, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


def mse(prediction, target):
    return ((prediction - target) ** 2).mean()


inputs, use = load()
model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
step, max_steps, batch_size = 0, 200, 50
while step < max_steps:
    shuffled = torch.randperm(len(inputs))
    for chunk in shuffled.split(batch_size):
        prediction = model(inputs[chunk])
        loss = mse(prediction, use[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step={step} mse={loss.item():.4f}")
        step += 1
        if step == max_steps:
            break
