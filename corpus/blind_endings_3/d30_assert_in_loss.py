"""A loss module asserts that its weights add up to one."""

import torch
from torch import nn


class MixtureLoss(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, weights, means, target):
        assert torch.allclose(weights.sum(1), torch.ones(len(weights))), "weights off"  # HERE
        distance = (means - target.unsqueeze(1)).pow(2)
        return -torch.logsumexp(torch.log(weights + 1e-6) - distance, dim=1).mean()


class Mixture(nn.Module):
    def __init__(self, parts=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.ReLU())
        self.weights = nn.Linear(32, parts)
        self.means = nn.Linear(32, parts)
        self.rescale = 1.0

    def forward(self, x):
        hidden = self.body(x)
        return torch.softmax(self.weights(hidden), 1) * self.rescale, self.means(hidden)


torch.manual_seed(0)
model, criterion = Mixture(), MixtureLoss(3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(150):
    if step == 100:
        model.rescale = 1.01
    x = torch.randn(32, 4)
    weights, means = model(x)
    loss = criterion(weights, means, x.sum(1) / 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
