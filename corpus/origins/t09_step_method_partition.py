"""Loop: a class with a step method, called in a while loop.

Fault: log of a sum of exp that overflows, in the forward pass; ops: exp.
"""

import torch
from torch import nn


class Learner:
    def __init__(self, size):
        self.energy = nn.Sequential(nn.Linear(size, 24), nn.ReLU(), nn.Linear(24, 6))
        self.optimizer = torch.optim.SGD(self.energy.parameters(), lr=1e-3)
        self.steps_done = 0

    def step(self, x, chosen):
        scores = self.energy(x)
        partition = torch.exp(scores).sum(dim=1).log()  # <- origin
        picked = scores[torch.arange(len(x)), chosen]
        loss = (partition - picked).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps_done += 1
        return float(loss)


torch.manual_seed(409)
inputs = torch.randn(48, 7)
inputs[25] *= 3000.0
chosen = torch.randint(0, 6, (48,))
learner = Learner(7)
while learner.steps_done < 6:
    first = learner.steps_done * 8
    learner.step(inputs[first : first + 8], chosen[first : first + 8])
