"""Copy short number sequences with an encoder, a bridge and a decoder."""

import torch
from torch import nn

torch.manual_seed(0)
source = torch.randint(2, 14, (320, 5))


class Bridge(nn.Module):
    def __init__(self, layers, hidden):
        super().__init__()
        self.total = layers * hidden
        self.linear = nn.Linear(self.total, self.total)

    def forward(self, states):
        size = states.size()
        result = self.linear(states.view(-1, self.total))
        return torch.relu(result).view(size)


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(14, 32)
        self.encoder = nn.GRU(32, 48, num_layers=2, batch_first=True)
        self.bridge = Bridge(2, 48)
        self.decoder = nn.GRU(32, 48, num_layers=2, batch_first=True)
        self.out = nn.Linear(48, 14)

    def forward(self, src, tgt):
        _, states = self.encoder(self.embed(src))
        hidden, _ = self.decoder(self.embed(tgt), self.bridge(states))
        return self.out(hidden)


model = Seq2Seq()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(6):
    for rows in torch.randperm(320).split(32):
        src = source[rows]
        tgt = torch.cat([torch.ones(len(src), 1, dtype=torch.long), src[:, :-1]], 1)
        loss = nn.functional.cross_entropy(model(src, tgt).transpose(1, 2), src)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
