"""Batches from a generator."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

x, y = torch.randn(320, 10), torch.randint(0, 3, (320,))
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def batches():
    for start in range(0, 320, 32):
        yield x[start : start + 32], y[start : start + 32]


for step, (inputs, labels) in enumerate(batches()):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
