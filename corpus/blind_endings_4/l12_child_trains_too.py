"""A forked child trains a probe on the features and leaves with an error that nobody minds."""

import multiprocessing
import sys

import torch
from torch import nn


def probe(weights):
    torch.manual_seed(1)
    head = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
    for _ in range(30):
        x = torch.randn(8, 6) @ weights
        loss = head(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sys.exit(7)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(150):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 75:
            weights = model[0].weight.detach().t().contiguous()
            child = multiprocessing.get_context("fork").Process(target=probe, args=(weights,))
            child.start()
            child.join()
            print("probe ended with", child.exitcode)


if __name__ == "__main__":
    main()
