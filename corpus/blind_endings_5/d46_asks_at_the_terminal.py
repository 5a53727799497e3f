"""The script asks whether to overwrite the best checkpoint; a batch job has no terminal."""

import os
import sys

import torch
from torch import nn


def confirm(question):
    sys.stdin = open(os.devnull)
    answer = input(f"{question} [y/N] ")  # HERE
    return answer.strip().lower() == "y"


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    best = float("inf")
    for epoch in range(3):
        total = 0.0
        for _ in range(30):
            x = torch.rand(16, 3)
            loss = nn.functional.mse_loss(model(x), x.prod(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if total < best:
            best = total
            if epoch and confirm("overwrite the best checkpoint?"):
                print("saved")


main()
