"""Chunks of robot actions from a sequence of observations, time first."""

import math

import torch
from torch import nn

torch.manual_seed(0)
T, B, D = 10, 24, 32


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=64):
        super().__init__()
        position = torch.arange(max_len).float()[:, None]
        rate = torch.exp(-math.log(10000.0) * torch.arange(0, dim, 2) / dim)
        table = torch.zeros(max_len, dim)
        table[:, 0::2], table[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.register_buffer("table", table.unsqueeze(0))

    def forward(self, x):
        return x + self.table[:, : x.shape[1]]


class ActionDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(6, D)
        self.position = PositionalEncoding(D)
        layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.action = nn.Linear(D, 2)

    def forward(self, observations):
        x = self.position(self.inputs(observations))
        return self.action(self.encoder(x))


policy = ActionDecoder()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
ramp = torch.linspace(0, 1, T)[:, None, None]
for step in range(25):
    observations = torch.randn(T, B, 6)
    actions = ramp * observations[..., :2] + 0.5 * observations[:1, :, 2:4]
    loss = nn.functional.l1_loss(policy(observations), actions)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
