"""Which of two marks comes first in a sequence: a transformer with sinusoidal positions."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=200):
        super().__init__()
        position = torch.arange(max_len).float().unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
        pe = torch.zeros(max_len, dim)
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        pe = pe.unsqueeze(1)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class Model(nn.Module):
    def __init__(self, vocab=10, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.pos = PositionalEncoding(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        return self.head(self.encoder(self.pos(self.embed(x))).mean(1))


x = torch.randint(2, 10, (320, 12))
first = torch.randint(0, 2, (320,))
places = torch.rand(320, 12).argsort(1)[:, :2].sort(1).values
x[torch.arange(320), places[:, 0]] = first
x[torch.arange(320), places[:, 1]] = 1 - first
loader = DataLoader(TensorDataset(x, first), batch_size=32, shuffle=True)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for inputs, target in loader:
        loss = nn.functional.cross_entropy(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
