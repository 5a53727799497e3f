"""Two models train in turn."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

x, y = torch.randn(320, 10), torch.randint(0, 3, (320,))
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

other = nn.Linear(10, 3)
second = torch.optim.Adam(other.parameters(), lr=1e-3)

for step, (inputs, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nn.functional.cross_entropy(other(inputs), labels).backward()
    second.step()
    second.zero_grad()
