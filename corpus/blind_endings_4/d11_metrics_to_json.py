"""Metrics go to a JSON file; one of them is still a tensor."""

import json
import tempfile

import torch
from torch import nn


class MetricsFile:
    def __init__(self, path):
        self.path = path
        self.rows = []

    def write(self, **row):
        self.rows.append(row)
        with open(self.path, "w") as out:
            json.dump(self.rows, out)  # HERE


def main():
    torch.manual_seed(0)
    metrics = MetricsFile(tempfile.mkstemp(suffix=".json")[1])
    model = nn.Linear(9, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = torch.tensor(10.0)
    for step in range(64):
        x = torch.randn(20, 9)
        loss = nn.functional.cross_entropy(model(x), (x[:, 3] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = torch.minimum(best, loss.detach())
        if step % 10 == 0:
            metrics.write(step=step, loss=loss.item())
        if step == 50:
            metrics.write(step=step, best=best)


main()
