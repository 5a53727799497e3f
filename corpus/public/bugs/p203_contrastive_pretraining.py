"""A student sees masked sentences and must match a teacher that sees them whole."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
WORDS, MASK = 30, 0


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.place = nn.Parameter(0.1 * torch.randn(12, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.2, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.embed(ids) + self.place)


class TaCL(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Encoder()
        self.teacher = copy.deepcopy(self.student)
        for p in self.teacher.parameters():
            p.requires_grad = False

    def forward(self, ids, masked):
        with torch.no_grad():
            wanted = F.normalize(self.teacher(ids), dim=-1)
        given = F.normalize(self.student(masked), dim=-1)
        scores = given @ wanted.transpose(1, 2) / 0.1
        labels = torch.arange(ids.shape[1]).expand(len(ids), -1)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


model = TaCL()
optimizer = torch.optim.AdamW(model.student.parameters(), lr=1e-3)
model.train()
for step in range(30):
    ids = torch.randint(1, WORDS, (16, 12))
    masked = ids.masked_fill(torch.rand(16, 12) < 0.15, MASK)
    loss = model(ids, masked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
