"""Train a surrogate, save, and resume."""

import io
import math

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(480, 10)
y = torch.tanh(x @ torch.randn(10, 4) / 2)
TOTAL, WARMUP = 60, 8


def build_scheduler(optimizer):
    def rate(step):
        if step < WARMUP:
            return (step + 1) / WARMUP
        return 0.05 + 0.475 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def build():
    model = nn.Sequential(nn.Linear(10, 48), nn.GELU(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = build_scheduler(optimizer)
    return model, optimizer, scheduler


def load_checkpoint(file):
    model, optimizer, scheduler = build()
    checkpoint = torch.load(file)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        rows = torch.randint(0, 480, (48,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()


model, optimizer, scheduler = build()
train(model, optimizer, scheduler, 22)
saved = {"model": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
file = io.BytesIO()
torch.save(saved, file)
file.seek(0)
train(*load_checkpoint(file), 20)
