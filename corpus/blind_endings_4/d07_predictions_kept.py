"""Predictions of every step are kept; the address space is limited, as in a small container."""

import resource

import torch
from torch import nn


class Recorder:
    def __init__(self):
        self.kept = []

    def add(self, predictions):
        self.kept.append(predictions.repeat(4000, 40))  # HERE


def limit_memory(gib):
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + gib * 2**30,) * 2)


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    recorder = Recorder()
    for step in range(500):
        x = torch.randn(32, 6)
        predictions = model(x)
        loss = nn.functional.mse_loss(predictions, x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 10:
            limit_memory(2)
        if step > 10:
            recorder.add(predictions.detach())


main()
