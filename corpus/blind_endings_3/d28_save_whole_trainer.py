"""The whole trainer is pickled, and it holds a function that cannot be."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(5, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.transform = lambda x: x / 2

    def epoch(self):
        for _ in range(40):
            x = self.transform(torch.randn(10, 5))
            loss = (self.model(x).squeeze(1) - x.sum(1)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def save(self, path):
        torch.save(self, path)  # HERE


trainer = Trainer()
trainer.epoch()
trainer.save("trainer.pt")
trainer.epoch()
