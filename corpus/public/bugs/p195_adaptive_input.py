"""A language model with embeddings of different size for frequent and rare words."""

import torch
from torch import nn

torch.manual_seed(0)
PAD, VOCABULARY = 1, 40


class AdaptiveInput(nn.Module):
    def __init__(self, padding_idx, cutoffs=(12, 26, VOCABULARY), dim=32):
        super().__init__()
        self.cutoffs = cutoffs
        self.bands = nn.ModuleList()
        previous, size = 0, dim
        for cutoff in cutoffs:
            embed = nn.Embedding(cutoff - previous, size, padding_idx)
            self.bands.append(nn.Sequential(embed, nn.Linear(size, dim, bias=False)))
            previous, size = cutoff, size // 2

    def forward(self, tokens):
        result, previous = None, 0
        for cutoff, band in zip(self.cutoffs, self.bands):
            mask = (tokens >= previous) & (tokens < cutoff)
            local = torch.where(mask, tokens - previous, 0)
            part = band(local) * mask.unsqueeze(-1)
            result = part if result is None else result + part
            previous = cutoff
        return result


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = AdaptiveInput(PAD)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, VOCABULARY)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    start = torch.randint(2, VOCABULARY, (24, 1))
    text = 2 + (start + 5 * torch.arange(13)) % (VOCABULARY - 2)
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:], ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
