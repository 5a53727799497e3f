"""Embed a question with attention over its words."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
questions = torch.randint(0, 30, (300, 7))
goal = torch.tanh(torch.randn(30, 10)[questions].mean(1) * 2)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.attn = nn.Linear(48, 1)
        self.hidden = nn.Linear(48, 10)

    def forward(self, ids):
        x = self.words(ids)
        outputs, _ = self.rnn(x)
        weight = F.softmax(self.attn(torch.cat([x, outputs], -1)), dim=-1)
        pooled = (weight * torch.cat([x, outputs], -1)).mean(1)
        return torch.tanh(self.hidden(pooled))


net = Embedder()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(50):
    rows = torch.randint(0, 300, (30,))
    loss = F.mse_loss(net(questions[rows]), goal[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
