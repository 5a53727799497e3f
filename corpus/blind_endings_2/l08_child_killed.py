"""A child process is killed on purpose, and the training ends well."""

import multiprocessing
import time

import torch
from torch import nn


def serve():
    time.sleep(600)


if __name__ == "__main__":
    torch.manual_seed(0)
    child = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
    child.start()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        x = torch.randn(16, 8)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 50:
            child.kill()
            child.join()
