"""An encoder made of clones of a layer."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
tokens = torch.randint(0, 12, (360, 7))
label = torch.bucketize((tokens > 5).sum(1), torch.tensor([2, 3]))


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        self.place = nn.Embedding(7, 32)
        self.layers = clones(nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True), 3)
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        x = self.embed(x) + self.place(torch.arange(7))
        for layer in self.layers:
            x = layer(x)
        return self.out(x.flatten(1).view(len(x), 7, 32).mean(1))


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(4):
    for rows in torch.randperm(360).split(40):
        loss = nn.functional.cross_entropy(model(tokens[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
