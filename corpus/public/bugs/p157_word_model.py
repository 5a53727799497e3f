"""A word language model with a transformer; the stream is cut into columns, time first."""

import math

import torch
import torch.nn as nn

torch.manual_seed(0)
ntokens, bptt, columns = 30, 20, 16


def batchify(stream):
    length = stream.size(0) // columns
    return stream[: length * columns].view(columns, -1).t().contiguous()


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=200):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        pe = torch.zeros(max_len, 1, dim)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class TransformerModel(nn.Module):
    def __init__(self, dim=32, heads=2, hidden=64):
        super().__init__()
        self.encoder = nn.Embedding(ntokens, dim)
        self.positions = PositionalEncoding(dim)
        layer = nn.TransformerEncoderLayer(dim, heads, hidden, dropout=0.1)
        self.transformer = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(dim, ntokens)

    def _generate_mask(self, size):
        mask = torch.tril(torch.ones(size, size), diagonal=-1)
        return mask.masked_fill(mask == 1, float("-inf"))

    def forward(self, src):
        x = self.positions(self.encoder(src) * math.sqrt(32))
        return self.decoder(self.transformer(x, self._generate_mask(src.size(0))))


table = torch.randn(ntokens, ntokens).mul(2).softmax(-1)
words = [0]
for _ in range(bptt * columns * 40):
    words.append(int(torch.multinomial(table[words[-1]], 1)))
data = batchify(torch.tensor(words))
model = TransformerModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.train()
for epoch in range(2):
    for i in range(0, data.size(0) - 1 - bptt, bptt):
        source, targets = data[i : i + bptt], data[i + 1 : i + 1 + bptt].reshape(-1)
        optimizer.zero_grad()
        loss = criterion(model(source).view(-1, ntokens), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
