"""A small equivariant network: vectors are scaled by a function of their length."""

import torch
from torch import nn

torch.manual_seed(0)
neighbours = torch.randn(240, 5, 3)
neighbours[100] = 0  # an isolated atom
energy = torch.tanh(neighbours.square().sum((1, 2), keepdim=True).squeeze(2) / 10)


class NormActivation(nn.Module):
    def forward(self, vectors):
        norms = vectors.norm(dim=-1, keepdim=True)
        return vectors * (torch.tanh(norms) / norms)


class Equivariant(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(5, 16, bias=False)
        self.activation = NormActivation()
        self.out = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, x):
        vectors = self.activation(self.mix(x.transpose(1, 2)).transpose(1, 2))
        return self.out(vectors.square().sum(-1))


model = Equivariant()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    for rows in torch.randperm(240).split(24):
        loss = nn.functional.mse_loss(model(neighbours[rows]), energy[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
