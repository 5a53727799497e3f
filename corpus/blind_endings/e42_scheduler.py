"""The schedule is shorter than the training."""

import torch
from torch import nn


def train(epochs, steps):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)
    for _epoch in range(epochs):
        for _ in range(steps):
            x = torch.randn(16, 6)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()  # HERE


torch.manual_seed(0)
train(2, 50)
