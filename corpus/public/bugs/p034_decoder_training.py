"""Train a small decoder on random walks over twelve symbols."""

import torch
from torch import nn

torch.manual_seed(0)
moves = torch.randint(-1, 2, (600, 12))
walks = moves.cumsum(1) % 12


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        self.place = nn.Embedding(12, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(32, 12)

    def forward(self, ids):
        h = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(6):
    for rows in torch.randperm(600).split(50):
        batch = walks[rows]
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
