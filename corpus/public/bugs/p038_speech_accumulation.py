"""Phone classification with accumulated gradients."""

import torch
from torch import nn

torch.manual_seed(0)
frames = torch.randn(640, 20)
phones = (frames @ torch.randn(20, 6)).argmax(1)
model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
accum_grad_n_steps = 4
optimizer.zero_grad()
for step in range(160):
    rows = torch.randint(0, 640, (16,))
    loss = criterion(model(frames[rows]), phones[rows])
    loss.backward()
    if (step + 1) % accum_grad_n_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
