"""A convolution network with an evolved normalisation layer, on small pictures."""

import torch
from torch import nn

torch.manual_seed(0)
pictures = torch.randn(200, 3, 8, 8)
label = (pictures.mean((1, 2, 3)) > 0).long()


def instance_std(x, eps=1e-5):
    var = torch.var(x, dim=(2, 3), keepdim=True)
    return torch.sqrt(var + eps)


class EvoNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.v = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x):
        spread = x.var(dim=(0, 2, 3), unbiased=False, keepdim=True).add(1e-5).sqrt()
        return x / torch.max(spread, self.v * x + instance_std(x)) * self.gamma + self.beta


def block(a, b):
    return [nn.Conv2d(a, b, 3, stride=2, padding=1), EvoNorm(b), nn.ReLU()]


net = nn.Sequential(*block(3, 16), *block(16, 16), *block(16, 24), nn.Flatten(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(4):
    for rows in torch.randperm(200).split(20):
        loss = nn.functional.cross_entropy(net(pictures[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
