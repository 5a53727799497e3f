"""A generator mixes two sources with next(); the smaller one is empty: RuntimeError by PEP 479."""

import torch
from torch import nn


def source(name, count, shift):
    generator = torch.Generator().manual_seed(len(name))
    for _ in range(count):
        yield torch.randn(10, 6, generator=generator) + shift


def mixed(large, small, every):
    for number, batch in enumerate(large):
        if number % every == every - 1:
            batch = torch.cat([batch[:5], next(small)[:5]])  # HERE
        yield batch


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in mixed(source("web", 500, 0.0), source("books", 20, 0.5), every=4):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
