"""Fine-tuning of a language model to which two special tokens are added."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)


class CausalLM(nn.Module):
    def __init__(self, vocab=24, dim=32, tie=True):
        super().__init__()
        self.tie = tie
        self.embed_tokens = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.tie_weights()

    def tie_weights(self):
        if self.tie:
            self.lm_head.weight = self.embed_tokens.weight

    def resize_token_embeddings(self, count):
        old = self.embed_tokens.weight.data
        kept = min(count, len(old))
        embed = nn.Embedding(count, old.shape[1])
        nn.init.normal_(embed.weight, std=0.1)
        embed.weight.data[:kept] = old[:kept]
        head = nn.Linear(old.shape[1], count, bias=False)
        head.weight.data.copy_(embed.weight.data)
        self.embed_tokens, self.lm_head = embed, head

    def forward(self, input_ids, labels):
        states, _ = self.decoder(self.embed_tokens(input_ids))
        logits = self.lm_head(states)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


def conversations(count=192):
    start, stride = torch.randint(24, (count, 1)), torch.randint(1, 4, (count, 1))
    body = (start + stride * torch.arange(10)) % 24
    user, answer = torch.full((count, 1), 24), torch.full((count, 1), 25)
    return torch.cat([user, body[:, :5], answer, body[:, 5:]], 1)


model = CausalLM()
model.resize_token_embeddings(26)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(2):
    for ids in DataLoader(conversations(), batch_size=16, shuffle=True):
        loss, _ = model(input_ids=ids, labels=ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
