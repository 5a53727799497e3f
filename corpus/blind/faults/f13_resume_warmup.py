"""Train, stop at a checkpoint and resume, with a decaying schedule."""

import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TOTAL = 160


def build(lr):
    model = nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.97**s)
    return model, optimizer, scheduler


def train(path, start, stop, x, y, lr, resume=False):
    model, optimizer, scheduler = build(lr)
    if resume:
        ckpt = torch.load(path)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        print(f"resumed from step {ckpt['step']}")
    for step in range(start, stop):
        idx = torch.randint(0, len(x), (32,))
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": stop}, path
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    x = torch.randn(1000, 10)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    train(path, 0, 60, x, y, args.lr)
    train(path, 60, TOTAL, x, y, args.lr, resume=True)


if __name__ == "__main__":
    main()
