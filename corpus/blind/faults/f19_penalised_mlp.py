"""MLP classifier with an explicit L2 term, written as a function per step."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

L2_LAMBDA = 1.0


def l2_penalty(model):
    return sum(p.pow(2).sum() for p in model.parameters())


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    ce = F.cross_entropy(model(x), y)
    loss = ce + L2_LAMBDA * l2_penalty(model)
    loss.backward()
    optimizer.step()
    return ce.item(), loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    c = 2 * torch.randn(6, 16)
    y = torch.randint(0, 6, (960,))
    x = c[y] + torch.randn(960, 16)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(5):
        for i, (xb, yb) in enumerate(loader):
            ce, total = train_step(model, optimizer, xb, yb)
            if i % 10 == 0:
                print(f"epoch {epoch} it {i} ce {ce:.4f} total {total:.4f}")
    print("weight norm", model[0].weight.norm().item())


if __name__ == "__main__":
    main()
