"""Curve fitting with L-BFGS and a closure."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
x = torch.linspace(-2, 2, 200).unsqueeze(1)
y = torch.sin(3 * x) * torch.exp(-(x**2) / 3) + 0.02 * torch.randn_like(x)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=10, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    return loss


for step in range(40):
    loss = optimizer.step(closure)
    if step % 4 == 0:
        print(f"step {step} loss {loss.item():.6f}")

with torch.no_grad():
    worst = (net(x) - y).abs().max().item()
print(f"largest residual {worst:.4f}")
