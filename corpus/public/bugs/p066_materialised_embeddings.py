"""Pretrain a language model whose head is tied to its embeddings."""

import torch
from torch import nn

torch.manual_seed(0)
texts = (torch.randint(0, 24, (400, 1)) + 7 * torch.arange(9)) % 24


class TiedLM(nn.Module):
    def __init__(self, tie_word_embeddings=True):
        super().__init__()
        self.embed = nn.Embedding(24, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.lm_head = nn.Linear(32, 24, bias=False)
        if tie_word_embeddings:
            self.lm_head.weight = self.embed.weight

    def initialize_weights(self):
        self.embed.weight = nn.Parameter(torch.randn(24, 32) * 0.3)

    def forward(self, ids):
        return self.lm_head(self.rnn(self.embed(ids))[0])


model = TiedLM(tie_word_embeddings=True)
model.initialize_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(4):
    for rows in torch.randperm(400).split(40):
        ids = texts[rows]
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
