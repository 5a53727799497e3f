"""Rows of a table as sequences of fields; the fields attend to each other."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Transactions(Dataset):
    def __init__(self, rows=256, fields=7, values=12):
        self.fields = torch.randint(values, (rows, fields))
        amount = self.fields[:, 0] * (self.fields[:, 1] % 3)
        self.label = (amount > amount.float().median()).long()

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        return {"field_ids": self.fields[index], "labels": self.label[index]}


class FieldEncoder(nn.Module):
    def __init__(self, values=12, fields=7, dim=32):
        super().__init__()
        self.embed = nn.Embedding(values, dim)
        self.which = nn.Parameter(0.2 * torch.randn(fields, dim))
        self.attention = nn.MultiheadAttention(dim, 4)
        self.mix = nn.Sequential(nn.Linear(fields * dim, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, field_ids, labels=None):
        x = self.embed(field_ids) + self.which
        x = x + self.attention(x, x, x, need_weights=False)[0]
        logits = self.mix(x.flatten(1))
        return nn.functional.cross_entropy(logits, labels), logits


model = FieldEncoder()
loader = DataLoader(Transactions(), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(3):
    for batch in loader:
        loss, _ = model(**batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
