"""The final weights are written by an atexit callback, into a folder that does not exist;
status 0."""

import atexit

import torch
from torch import nn


class Experiment:
    def __init__(self, target):
        self.target = target
        self.model = nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        atexit.register(self.finish)

    def finish(self):
        torch.save({"model": self.model.state_dict()}, self.target)  # HERE

    def step(self):
        x = torch.randn(32, 10)
        loss = nn.functional.mse_loss(self.model(x), x.mean(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


torch.manual_seed(0)
experiment = Experiment("weights_of_the_week/final.pt")
for _ in range(150):
    experiment.step()
