"""Energies of molecules as a sum over their atoms, from distances."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
ATOMS = 6


class Interaction(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(12, dim), nn.Softplus(), nn.Linear(dim, dim))
        self.update = nn.Sequential(nn.Linear(dim, dim), nn.Softplus(), nn.Linear(dim, dim))

    def forward(self, x, basis):
        messages = self.filter(basis) * x[:, None, :, :]
        return x + self.update(messages.mean(2))


class AtomisticModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embedding = nn.Embedding(10, dim)
        self.interactions = nn.ModuleList(Interaction(dim) for _ in range(2))
        self.output = nn.Sequential(nn.Linear(dim, 16), nn.Softplus(), nn.Linear(16, 1))
        self.register_buffer("centres", torch.linspace(0.5, 4.0, 12))

    def forward(self, numbers, positions):
        offsets = positions[:, :, None] - positions[:, None]
        distance = (offsets.pow(2).sum(-1) + 1e-6).sqrt()
        basis = torch.exp(-3.0 * (distance[..., None] - self.centres) ** 2)
        x = self.embedding(numbers)
        for interaction in self.interactions:
            x = interaction(x, basis)
        return self.output(x).sum(1).squeeze(-1)


kinds = torch.tensor([1, 6, 7, 8])
atom_energies = torch.tensor([-13.6, -1030.0, -1486.0, -2043.0])
which = torch.randint(4, (400, ATOMS))
numbers, positions = kinds[which], 1.5 * torch.randn(400, ATOMS, 3)
energy = atom_energies[which].sum(1) + 20.0 * torch.exp(-positions.norm(dim=-1)).sum(1)
dataset = TensorDataset(numbers, positions, energy)
loader = DataLoader(dataset, batch_size=20, shuffle=True)
model = AtomisticModel()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.MSELoss()
for epoch in range(2):
    for z, r, e in loader:
        loss = loss_fn(model(z, r), e)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
