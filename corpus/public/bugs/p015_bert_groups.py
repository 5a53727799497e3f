"""Classify pairs of short token sequences with a small BERT-like encoder."""

import torch
from torch import nn

torch.manual_seed(0)
ids = torch.randint(2, 30, (256, 10))
ids[:, 0] = 1
label = ((ids == 5) | (ids == 7)).any(1).long()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(30, 32)
        self.place = nn.Embedding(10, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)

    def forward(self, ids):
        return self.block(self.word(ids) + self.place(torch.arange(ids.shape[1])))


class PairModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.pooler = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.classifier = nn.Linear(32, 2)

    def forward(self, ids):
        return self.classifier(self.pooler(self.encoder(ids)[:, 0]))


def get_optimizer_parameters(model):
    groups = [{"params": model.encoder.parameters(), "lr": 1e-3}]
    groups.append({"params": model.classifier.parameters(), "lr": 2e-3})
    return groups


model = PairModel()
optimizer = torch.optim.AdamW(get_optimizer_parameters(model), lr=1e-3)
for step in range(50):
    rows = torch.randint(0, 256, (32,))
    loss = nn.functional.cross_entropy(model(ids[rows]), label[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
