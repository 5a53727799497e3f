"""Optimise a soft prompt in front of a frozen half-precision encoder."""

import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 24)
        self.mix = nn.Linear(24, 24)
        self.out = nn.Linear(24, 8)

    def forward(self, prompt, ids):
        h = torch.cat([prompt.expand(len(ids), -1, -1), self.embed(ids)], 1)
        return self.out(torch.tanh(self.mix(h)).mean(1))


model = Encoder().half().requires_grad_(False)
prompt = nn.Parameter(model.embed(torch.arange(4)).detach().clone())
optimizer = torch.optim.Adam([prompt], lr=1e-2)
goal = torch.tanh(torch.randn(8))
for step in range(40):
    ids = torch.randint(0, 30, (16, 6))
    out = model(prompt, ids)
    loss = (out.float() - goal).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
