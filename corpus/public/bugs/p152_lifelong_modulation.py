"""Adaptation of a frozen generator to new pictures with a small factored modulation."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class ModulatedLinear(nn.Module):
    def __init__(self, inputs, outputs, rank=2):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.add_out = nn.Parameter(torch.zeros(outputs, rank))
        self.add_in = nn.Parameter(torch.zeros(rank, inputs))

    def forward(self, x):
        weight = self.base.weight * (1 + self.add_out @ self.add_in)
        return F.linear(x, weight, self.base.bias)


class Generator(nn.Module):
    def __init__(self, noise=8, size=16):
        super().__init__()
        self.first = ModulatedLinear(noise, 48)
        self.second = ModulatedLinear(48, 48)
        self.shift = nn.Parameter(torch.zeros(48))
        self.last = ModulatedLinear(48, size)

    def forward(self, z):
        h = F.leaky_relu(self.first(z), 0.2)
        return self.last(F.leaky_relu(self.second(h) + self.shift, 0.2))


generator = Generator()
critic = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
g_optim = torch.optim.Adam([p for p in generator.parameters() if p.requires_grad], lr=2e-3)
d_optim = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.99))
template = torch.sin(torch.linspace(0, 6.3, 16))

for step in range(30):
    real = template * (1 + 0.3 * torch.randn(32, 1)) + 0.2 * torch.randn(32, 16)
    fake = generator(torch.randn(32, 8)).detach()
    d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()
    d_optim.zero_grad()
    d_loss.backward()
    d_optim.step()

    g_loss = F.softplus(-critic(generator(torch.randn(32, 8)))).mean()
    g_optim.zero_grad()
    g_loss.backward()
    g_optim.step()
