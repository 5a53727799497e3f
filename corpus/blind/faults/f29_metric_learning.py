"""Batch-all metric learning with pairwise distances."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def pairwise_distance(z):
    sq = (z.unsqueeze(1) - z.unsqueeze(0)).pow(2).sum(-1)
    return torch.where(sq > 0, sq.sqrt(), torch.zeros_like(sq))


def metric_loss(z, y, margin=1.0):
    d = pairwise_distance(z)
    same = (y.unsqueeze(1) == y.unsqueeze(0)).float()
    pos = (d * same).sum() / same.sum()
    neg = (F.relu(margin - d) * (1 - same)).sum() / (1 - same).sum()
    return pos + neg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 5, (400,))
    x = torch.randn(5, 12)[y] + 0.5 * torch.randn(400, 12)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True, drop_last=True)
    embed = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    opt = torch.optim.Adam(embed.parameters(), lr=1e-3)
    for epoch in range(2):
        for i, (xb, yb) in enumerate(loader):
            loss = metric_loss(embed(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if i % 5 == 0 or i < 3:
                print(f"epoch {epoch} it {i} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
