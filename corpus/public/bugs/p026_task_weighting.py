"""Two tasks on one trunk, weighted by a small rule."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 12)
first = torch.tanh(x[:, :1] + x[:, 1:2])
second = torch.tanh(x[:, 2:3] * 2)


class Weighting:
    def __init__(self, tasks, max_norm=1.0):
        self.w = torch.full((tasks,), 1.0 / tasks)
        self.max_norm = max_norm

    def backward(self, losses, shared):
        loss = (self.w * losses).sum()
        torch.nn.utils.clip_grad_norm_(shared, self.max_norm)
        loss.backward()
        return loss


trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
heads = nn.ModuleList([nn.Linear(32, 1), nn.Linear(32, 1)])
optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=3e-3)
weighting = Weighting(2)
for step in range(60):
    rows = torch.randint(0, 400, (40,))
    h = trunk(x[rows])
    losses = torch.stack(
        [
            nn.functional.mse_loss(heads[0](h), first[rows]),
            nn.functional.mse_loss(heads[1](h), second[rows]),
        ]
    )
    optimizer.zero_grad()
    weighting.backward(losses, list(trunk.parameters()))
    optimizer.step()
