"""A decoder-only transformer, written from scratch, that learns to continue stories."""

import math

import torch
from torch import nn

torch.manual_seed(0)
WORDS, LENGTH = 24, 12
following = torch.stack([torch.randperm(WORDS)[:4] for _ in range(WORDS)])


class MultiHeadAttention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, self.heads, 3 * self.head_dim)
        q, k, v = qkv.permute(0, 2, 1, 3).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        values = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.output(values.reshape(batch, length, dim))


class Block(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.attention, self.norm1 = MultiHeadAttention(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class StoryModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, dim), nn.Embedding(LENGTH, dim)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(dim, WORDS)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.blocks(x))


def stories(count=24):
    rows = [torch.randint(WORDS, (count,))]
    for _ in range(LENGTH):
        rows.append(following[rows[-1], torch.randint(4, (count,))])
    return torch.stack(rows, dim=1)


model = StoryModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    story = stories()
    logits = model(story[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), story[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
