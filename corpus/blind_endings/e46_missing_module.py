"""A module that is not installed, imported at the end of training."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(40):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

import plotting_library_of_a_colleague  # noqa: E402  # HERE

plotting_library_of_a_colleague.plot(model)
