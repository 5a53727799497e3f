"""A checkpoint of a wider model is loaded between two phases."""

import tempfile

import torch
from torch import nn


def build(width):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def train(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
path = tempfile.mkdtemp() + "/phase1.pt"
first = build(16)
train(first, 40)
torch.save(first.state_dict(), path)
second = build(32)
second.load_state_dict(torch.load(path))  # HERE
train(second, 40)
