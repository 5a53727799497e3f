"""A small training brain with hooks, as speech toolkits have it."""

import torch
from torch import nn
from torch.autograd import Variable

torch.manual_seed(0)


class Brain:
    def __init__(self, module):
        self.module = module
        self.optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)

    def compute_forward(self, batch):
        return self.module(batch["sig"])

    def compute_objectives(self, predictions, batch):
        return nn.functional.mse_loss(predictions, batch["clean"])

    def fit(self, batches):
        for batch in batches:
            predictions = self.compute_forward(batch).detach()
            loss = self.compute_objectives(predictions, batch)
            loss = Variable(loss, requires_grad=True)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def batches(n):
    wave = torch.sin(torch.linspace(0, 20, 64))
    for _ in range(n):
        clean = wave * torch.rand(24, 1)
        yield {"sig": clean + 0.3 * torch.randn(24, 64), "clean": clean}


Brain(nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 64))).fit(batches(40))
