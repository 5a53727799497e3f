"""Detection of calls in sound, with few positive samples."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
labels = (torch.rand(600) < 0.15).long()
sound = 0.6 * torch.randn(600, 1, 64)
sound[labels == 1] += torch.sin(torch.linspace(0, 25, 64)) * 0.8
dataset = TensorDataset(sound, labels)

prior = torch.bincount(labels).float() / len(labels)
weights = 1.0 / prior
sampler = WeightedRandomSampler(weights, num_samples=len(dataset), replacement=True)
loader = DataLoader(dataset, batch_size=30, sampler=sampler)

model = nn.Sequential(
    nn.Conv1d(1, 16, 9, padding=4),
    nn.ReLU(),
    nn.MaxPool1d(4),
    nn.Conv1d(16, 16, 5, padding=2),
    nn.ReLU(),
    nn.AdaptiveMaxPool1d(1),
    nn.Flatten(),
    nn.Linear(16, 2),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
