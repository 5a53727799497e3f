"""Warmup and cosine decay with accumulated gradients, in the style of the library's examples."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
epochs, accumulation = 4, 4
x = torch.randn(512, 10)
y = torch.sin(2 * x[:, :1]) + 0.2 * x[:, 1:2]
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
updates = epochs * len(loader) // accumulation
warmup = updates // 10


def lr_lambda(step):
    if step < warmup:
        return step / max(1, warmup)
    progress = min(1.0, (step - warmup) / max(1, updates - warmup))
    return 0.5 * (1 + math.cos(math.pi * progress))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)
for epoch in range(epochs):
    for step, (inputs, target) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), target) / accumulation
        loss.backward()
        if (step + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
