"""Loop: a function for an epoch, called for each epoch.

Fault: a bias of zeros is scaled to a norm, inf * 0, between two steps; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def limit_norms(model, limit):
    for parameter in model.parameters():
        scale = limit / parameter.data.norm()  # <- origin
        parameter.data.mul_(scale)


def train_epoch(model, loader, optimizer, epoch):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    if epoch >= 1:
        limit_norms(model, 1.0)
    return total / len(loader.dataset)


torch.manual_seed(421)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
nn.init.zeros_(model[0].bias)
model[0].bias.requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
loader = DataLoader(TensorDataset(torch.randn(16, 6), torch.randn(16, 1)), batch_size=8)
print([train_epoch(model, loader, optimizer, epoch) for epoch in range(4)])
