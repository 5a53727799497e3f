"""Answer which context item carries the key of a query."""

import torch
from torch import nn

torch.manual_seed(0)
keys = torch.randn(512, 6, 8)
values = torch.randint(0, 4, (512, 6))
pick = torch.randint(0, 6, (512,))
query = keys[torch.arange(512), pick] + 0.05 * torch.randn(512, 8)
answer = values[torch.arange(512), pick]


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d, bias=False)
        self.softmax = nn.Softmax(dim=0)

    def forward(self, query, context, payload):
        scores = (context @ self.proj(query).unsqueeze(-1)).squeeze(-1)
        weights = self.softmax(scores)
        return (weights.unsqueeze(-1) * payload).sum(1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attention(8)
        self.payload = nn.Embedding(4, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, query, keys, values):
        return self.out(torch.tanh(self.attend(query, keys, self.payload(values))))


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    rows = torch.randint(0, 512, (64,))
    loss = nn.functional.cross_entropy(model(query[rows], keys[rows], values[rows]), answer[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
