"""The closure of LBFGS raises in its third step."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
history = {0: 1.0, 1: 0.5, 2: 0.25}
for epoch in range(10):

    def closure(epoch=epoch):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) * history[epoch]  # HERE
        loss.backward()
        return loss

    optimizer.step(closure)
