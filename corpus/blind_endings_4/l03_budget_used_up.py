"""A callback deep inside the loop ends the training in good order: raise SystemExit(0)."""

import torch
from torch import nn


class StopWhen:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, step, loss):
        if step >= self.limit:
            print(f"target reached at step {step}: {loss:.3f}")
            raise SystemExit(0)


class Loop:
    def __init__(self, callbacks):
        self.callbacks = callbacks
        self.model = nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def run(self):
        for step in range(1000):
            x = torch.randn(16, 6)
            loss = (self.model(x).squeeze(1) - x.sum(1)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for callback in self.callbacks:
                callback(step, loss.item())


torch.manual_seed(0)
Loop([StopWhen(150)]).run()
