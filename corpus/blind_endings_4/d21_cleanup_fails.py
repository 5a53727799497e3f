"""Ctrl-C: the save in the handler fails, so an interrupted run ends with an error."""

import time

import torch
from torch import nn


def train(model, optimizer):
    for step in range(4000):
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if step == 60:
            print("signal me", flush=True)


def main():
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    try:
        train(model, optimizer)
    except KeyboardInterrupt:
        torch.save(model.state_dict(), "checkpoints/interrupted.pt")  # HERE


if __name__ == "__main__":
    main()
