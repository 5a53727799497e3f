"""torch.compile(fullgraph=True): a branch on data is switched on in the second stage."""

import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 1)
        self.careful = False

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        if self.careful and hidden.mean() > 0:  # HERE
            hidden = hidden / hidden.mean()
        return self.down(hidden)


torch.manual_seed(0)
model = Gated()
compiled = torch.compile(model, backend="eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    model.careful = step >= 80
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(compiled(x), x.mean(1, keepdim=True))  # HERE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
