"""A covariance matrix that is not positive definite, inside a loss in another file."""

import torch
from helpers_gaussian import negative_log_likelihood
from torch import nn

torch.manual_seed(0)
model = nn.Linear(7, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(50):
    x = torch.randn(32, 7)
    if step == 38:
        x = x[:1].expand(32, 7)
    loss = negative_log_likelihood(model(x), jitter=1e-3 if step < 38 else -1e-3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
