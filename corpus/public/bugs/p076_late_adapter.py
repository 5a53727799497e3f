"""Fine-tune with a bottleneck adapter between a frozen encoder and a head."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 16)
y = (x[:, :8].sum(1) > 0).long()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.Tanh()).requires_grad_(False)
        self.adapter = None
        self.head = nn.Linear(32, 2)

    def add_adapter(self, size):
        self.adapter = nn.Sequential(nn.Linear(32, size), nn.ReLU(), nn.Linear(size, 32))

    def forward(self, x):
        h = self.encoder(x)
        if self.adapter is not None:
            h = h + self.adapter(h)
        return self.head(h)


model = Model()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
model.add_adapter(8)
for epoch in range(4):
    for rows in torch.randperm(400).split(40):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
