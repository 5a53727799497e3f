"""Find hard examples with a perceptron."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(480, 10)
y = ((x[:, 0] * x[:, 1]) + x[:, 2] > 0).long()


def build_mlp(sizes, classes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers.append(nn.Linear(a, b))
        layers.append(nn.Dropout(0.1))
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


model = build_mlp([10, 48, 48], 2)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    for rows in torch.randperm(480).split(40):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
