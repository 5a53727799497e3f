"""Two spaces of embeddings are aligned by a rotation that is found in closed form."""

import torch
from torch import nn

torch.manual_seed(0)


class Aligner(nn.Module):
    def __init__(self, entities=60, dim=6, padded=10):
        super().__init__()
        self.entities = nn.Embedding(entities, dim)
        self.change = nn.Linear(dim, dim)
        self.pad = nn.ZeroPad1d((0, padded - dim))

    def forward(self, heads, tails):
        a = self.pad(self.entities(heads))
        b = self.pad(self.change(self.entities(tails)))
        product = a.T @ b
        u, s, vh = torch.linalg.svd(product)
        rotation = u @ vh
        return ((a @ rotation - b) ** 2).sum(1).mean()


model = Aligner()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(25):
    heads = torch.randint(60, (48,))
    loss = model(heads, (heads * 7 + 3) % 60)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
