"""signal.alarm without a handler: the process ends with SIGALRM in the middle of a step."""

import signal
import time

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4000):
        if step == 80:
            signal.alarm(2)
        x = torch.randn(16, 6)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)


main()
