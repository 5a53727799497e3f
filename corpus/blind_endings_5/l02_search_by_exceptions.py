"""A tuner prunes trials by raising; every trial is a small training, and most are pruned."""

import torch
from torch import nn


class Pruned(Exception):
    pass


def trial(rate, best):
    torch.manual_seed(0)
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(60):
        x = torch.randn(24, 5)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30 and loss.item() > best * 1.5:
            raise Pruned(f"rate {rate}: {loss.item():.3f}")
    return loss.item()


best = float("inf")
for rate in (0.03, 0.001, 0.05, 0.0005, 0.02):
    try:
        best = min(best, trial(rate, best))
    except Pruned as pruned:
        print("pruned", pruned)
print("best", best)
