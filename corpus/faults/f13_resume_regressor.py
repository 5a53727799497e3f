"""Train a regressor in two sessions, as on a cluster with short time slots."""

import argparse
import os
import random
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

TOTAL_STEPS = 140


def schedule(step):
    return 0.97**step


def make_data(n=2000):
    x = torch.randn(n, 10)
    y = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] - 0.5 * x[:, 3].abs()
    y = (y - y.mean()) / y.std()
    return x, y.unsqueeze(1)


def build():
    model = nn.Sequential(
        nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, optimizer


def session(x, y, path, until):
    model, optimizer = build()
    start = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
        print(f"resumed from step {start}")
    scheduler = LambdaLR(optimizer, schedule)

    for step in range(start, until):
        index = torch.randint(0, len(x), (64,))
        loss = F.mse_loss(model(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            rate = scheduler.get_last_lr()[0]
            print(f"step {step}: loss {loss.item():.4f} lr {rate:.2e}")

    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": until}, path
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    x, y = make_data()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        session(x, y, path, until=60)
        session(x, y, path, until=TOTAL_STEPS)
