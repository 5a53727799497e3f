"""Triplet margin training; easy batches give a loss of exactly zero."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
centers = 1.5 * torch.randn(12, 20)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
criterion = nn.TripletMarginLoss(margin=0.3)
zero = 0
for step in range(150):
    a = torch.randint(0, 12, (8,))
    n = (a + torch.randint(1, 12, (8,))) % 12
    anchor = centers[a] + 0.8 * torch.randn(8, 20)
    positive = centers[a] + 0.8 * torch.randn(8, 20)
    negative = centers[n] + 0.8 * torch.randn(8, 20)
    za, zp, zn = (F.normalize(net(t), dim=1) for t in (anchor, positive, negative))
    loss = criterion(za, zp, zn)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    zero += int(loss.item() == 0)
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.4f} zero batches {zero}")

with torch.no_grad():
    y = torch.arange(12).repeat(10)
    z = F.normalize(net(centers[y] + 0.8 * torch.randn(120, 20)), dim=1)
    nearest = (z @ z.T - 2 * torch.eye(120)).argmax(1)
    print(f"nearest-neighbour accuracy {(y[nearest] == y).float().mean():.3f}")
