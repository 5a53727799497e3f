"""Entailment of sentence pairs with averaged states, sentences padded to the longest."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
PAD = 0
pairs = []
for _ in range(240):
    a = torch.randint(1, 30, (int(torch.randint(3, 14, (1,))),))
    same = int(torch.rand(1) < 0.5)
    b = a.flip(0)[: max(2, len(a) // 2)] if same else torch.randint(1, 30, (len(a) // 2 + 1,))
    pairs.append((a, b, same))


def collate(rows):
    first, second, label = zip(*rows)
    return {
        "premise": pad_sequence(first, batch_first=True, padding_value=PAD),
        "hypothesis": pad_sequence(second, batch_first=True, padding_value=PAD),
        "labels": torch.tensor(label),
    }


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(30, dim, padding_idx=PAD)
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.Tanh())

    def forward(self, ids):
        mask = (ids != PAD).unsqueeze(-1).float()
        states = self.proj(self.embed(ids))
        return states.mean(dim=1)


class Entailment(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.classifier = nn.Sequential(nn.Linear(128, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, premise, hypothesis, labels):
        u, v = self.encoder(premise), self.encoder(hypothesis)
        logits = self.classifier(torch.cat([u, v, (u - v).abs(), u * v], 1))
        return nn.functional.cross_entropy(logits, labels)


model = Entailment()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(pairs, batch_size=24, shuffle=True, collate_fn=collate)
for epoch in range(3):
    for batch in loader:
        loss = model(**batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
