"""Quantisation-aware training: ranges are measured on some batches after the set-up."""

import torch
from torch import nn

torch.manual_seed(0)


class FakeQuantize(nn.Module):
    def __init__(self, levels=16):
        super().__init__()
        self.levels = levels
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        step = self.scale.abs() / self.levels + 1e-6
        y = (x / step).clamp(-self.levels, self.levels)
        return (y + (y.round() - y).detach()) * step


class QuantizedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 48)
        self.q1 = FakeQuantize()
        self.fc2 = nn.Linear(48, 3)

    def forward(self, x):
        return self.fc2(self.q1(torch.relu(self.fc1(x))))


class RangeInitializer:
    def __init__(self, model, data):
        self.model, self.data = model, data

    @torch.no_grad()
    def run(self):
        hidden = torch.relu(self.model.fc1(self.data))
        self.model.q1.scale = nn.Parameter(hidden.abs().max().reshape(1))


x = torch.randn(256, 12)
y = (x @ torch.randn(12, 3)).argmax(1)
net = QuantizedNet()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
RangeInitializer(net, x[:64]).run()
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
