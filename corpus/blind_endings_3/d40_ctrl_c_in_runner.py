"""Ctrl-C arrives while a Trainer class runs its epoch; its finally block prints a summary."""

import time

import torch
from torch import nn


class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.losses = []

    def step(self):
        x = torch.randn(16, 4)
        loss = (self.model(x).squeeze(1) - x[:, 2]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def run(self, steps):
        try:
            for number in range(steps):
                self.step()
                if number == 50:
                    print("signal me", flush=True)
                time.sleep(0.02)
        finally:
            print("last losses", self.losses[-3:])


if __name__ == "__main__":
    Runner().run(100_000)
