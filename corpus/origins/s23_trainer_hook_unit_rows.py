"""Loop: class Trainer with an overridable after_step.

Fault: rows of a weight are divided by their norm, 0 / 0, between two steps; ops: div.
"""

import torch
from torch import nn


class Base:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def after_step(self):
        pass

    def run(self, batches):
        for x, y in batches:
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.after_step()


class Projected(Base):
    def __init__(self, model, lr, every):
        super().__init__(model, lr)
        self.every, self.count = every, 0

    @torch.no_grad()
    def after_step(self):
        self.count += 1
        if self.count % self.every:
            return
        weight = self.model[0].weight
        weight.div_(weight.norm(dim=1, keepdim=True))  # <- origin


torch.manual_seed(323)
model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3))
with torch.no_grad():
    model[0].weight[5] = 0.0
    model[2].weight[:, 5] = 0.0
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
Projected(model, 1e-2, every=3).run(zip(x.split(8), y.split(8), strict=True))
