"""A schedule given as a table; the table ends before the training does."""

import torch
from torch import nn

TABLE = {0: 1.0, 1: 0.9, 2: 0.7, 3: 0.4}


def build():
    model = nn.Sequential(nn.Linear(10, 30), nn.GELU(), nn.Linear(30, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: TABLE[step // 20],  # HERE
    )
    return model, optimizer, schedule


def main():
    torch.manual_seed(1)
    model, optimizer, schedule = build()
    for _ in range(100):
        x = torch.randn(40, 10)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


main()
