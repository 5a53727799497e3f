"""Scans and their ground truth come from two readers, each with its own queue."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
scans = torch.randn(160, 1, 8, 8)
truth = (scans[:, 0, 2:6, 2:6].mean((1, 2)) > 0).long()
scan_loader = DataLoader(TensorDataset(scans), batch_size=16, shuffle=True)
truth_loader = DataLoader(TensorDataset(truth), batch_size=16, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(20):
    seed = int(torch.randint(10**6, (1,)))
    torch.manual_seed(seed)
    images = list(scan_loader)
    targets = list(truth_loader)
    for (x,), (y,) in zip(images, targets):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
