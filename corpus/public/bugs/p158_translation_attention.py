"""Attention written by hand, with a mask for padded tokens, in a small sentence tagger."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
PAD = 0


class MyMultiHeadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x, key_padding_mask):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = q @ k.transpose(-2, -1) / self.size**0.5
        mask = key_padding_mask.unsqueeze(1).unsqueeze(2)
        weights = weights.masked_fill(mask, float("-inf"))
        y = weights.softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Tagger(nn.Module):
    def __init__(self, words=40, dim=32, tags=4):
        super().__init__()
        self.embed = nn.Embedding(words, dim, padding_idx=PAD)
        self.attention = MyMultiHeadAttention(dim, 4)
        self.norm = nn.LayerNorm(dim)
        self.classify = nn.Linear(dim, tags)

    def forward(self, ids):
        x = self.embed(ids)
        real = ids != PAD
        return self.classify(self.norm(x + self.attention(x, real)))


def sentence():
    ids = torch.randint(1, 40, (int(torch.randint(4, 12, (1,))),))
    before = torch.cat([ids[:1], ids[:-1]])
    return ids, (ids + before) % 4


def collate(rows):
    ids, tags = zip(*rows)
    pad = nn.utils.rnn.pad_sequence
    return pad(ids, True, PAD), pad(tags, True, -100)


loader = DataLoader([sentence() for _ in range(256)], 16, shuffle=True, collate_fn=collate)
model = Tagger()
criterion = nn.CrossEntropyLoss(ignore_index=-100)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(2):
    for ids, tags in loader:
        loss = criterion(model(ids).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
