"""Self-attention over padded sentences; each word's class is to be told."""

import torch
from torch import nn

torch.manual_seed(0)
PAD = 0
ids = torch.randint(1, 20, (192, 9))
for row, length in enumerate(torch.randint(4, 10, (192,))):
    ids[row, length:] = PAD
target = torch.where(ids == PAD, -100, ids % 3)


class Attention(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, pad):
        mask = pad[:, None, :] | pad[:, :, None]
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5
        scores = scores.masked_fill(mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return x + weights @ self.v(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.attention = Attention()
        self.out = nn.Linear(32, 3)

    def forward(self, ids):
        return self.out(torch.relu(self.attention(self.embed(ids), ids == PAD)))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    rows = torch.randint(0, 192, (24,))
    loss = nn.functional.cross_entropy(model(ids[rows]).transpose(1, 2), target[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
