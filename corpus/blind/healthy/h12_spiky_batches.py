"""Regression where one shard of the data is noisy; the loss jumps and comes back."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
w = torch.randn(10)


def batches(n):
    for i in range(n):
        x = torch.randn(64, 10)
        y = torch.tanh(x @ w * 0.5)
        if i == 90:
            y = y + 3.0 * torch.randn(64)
        yield x, y


model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step, (x, y) in enumerate(batches(180)):
    loss = F.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad():
    x, y = next(batches(1))
    residual = model(x).squeeze(1) - y
    print(f"held-out mse {residual.pow(2).mean().item():.4f}")
