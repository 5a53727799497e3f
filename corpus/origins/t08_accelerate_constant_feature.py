"""Loop: accelerate, with clipping by the accelerator.

Fault: a feature that is constant in the batch, divided by its deviation: 0 / 0; ops: div.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(408)
table = torch.randn(48, 5)
table[24:32, 3] = 2.0  # this sensor was stuck for an hour
accelerator = Accelerator(cpu=True)
regressor = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(regressor.parameters(), lr=2e-3)
data = DataLoader(TensorDataset(table, torch.randn(48, 1)), batch_size=8)
regressor, optimizer, data = accelerator.prepare(regressor, optimizer, data)


def whiten(features):
    centred = features - features.mean(dim=0)
    return centred / features.std(dim=0)  # <- origin


def train(epochs):
    for _ in range(epochs):
        for features, value in data:
            optimizer.zero_grad()
            loss = nn.functional.huber_loss(regressor(whiten(features)), value)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(regressor.parameters(), 1.0)
            optimizer.step()


train(2)
