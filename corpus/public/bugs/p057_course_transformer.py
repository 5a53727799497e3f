"""Classify which half of a sequence holds more large numbers."""

import torch
from torch import nn

torch.manual_seed(0)
x_all = torch.randint(0, 10, (480, 8))
y_all = (x_all[:, :4].sum(1) > x_all[:, 4:].sum(1)).long()


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(10, 32)
        self.positions = nn.Embedding(64, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        pos = torch.arange(x.size(0)).unsqueeze(1)
        h = self.tokens(x) + self.positions(pos)
        return self.out(self.block(h).mean(1))


model = Transformer()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    for rows in torch.randperm(480).split(40):
        loss = nn.functional.cross_entropy(model(x_all[rows]), y_all[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
