"""torch.compile with changing shapes and graph breaks; the compiler complains and falls back."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 24), nn.Linear(24, 1)

    def forward(self, x):
        hidden = torch.relu(self.a(x))
        if hidden.mean().item() > 100:
            hidden = hidden / 100
        return self.b(hidden)


torch.manual_seed(0)
model = Net()
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(90):
    x = torch.randn(8 + 4 * (step % 5), 6)
    loss = nn.functional.mse_loss(compiled(x), x.mean(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
