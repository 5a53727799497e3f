"""Causal attention over a short memory."""

import torch
from torch import nn

torch.manual_seed(0)
sequences = torch.randn(300, 8, 10).cumsum(1) / 3


class Attention(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.to_qkv = nn.Linear(d, 96)
        self.out = nn.Linear(32, d)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        dots = q @ k.transpose(1, 2) / 32**0.5
        future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        dots.masked_fill_(future, -float("-inf"))
        attention = dots.softmax(dim=-1)
        return self.out(torch.relu(attention @ v))


model = Attention()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    for rows in torch.randperm(300).split(30):
        x = sequences[rows]
        loss = nn.functional.mse_loss(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
