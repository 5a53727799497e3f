"""Tag tokens of short sentences; encoder and head have their own rates."""

import torch
from torch import nn

torch.manual_seed(1)
words = torch.randint(0, 40, (256, 10))
tags = words % 5


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.encoder = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(64, 5)

    def forward(self, ids):
        return self.fc(self.encoder(self.embed(ids))[0])


model = Tagger()
parameters = []
params = {"lr": 3e-3, "weight_decay": 1e-2, "params": []}
for name, param in model.named_parameters():
    if "fc" not in name:
        params["params"].append(param)
parameters.append(params)
params = {"lr": 5e-3, "weight_decay": 0.0, "params": []}
for name, param in model.named_parameters():
    if "fc" in name:
        params["params"].append(param)
optimizer = torch.optim.AdamW(parameters)

criterion = nn.CrossEntropyLoss()
for step in range(60):
    rows = torch.randint(0, 256, (32,))
    loss = criterion(model(words[rows]).flatten(0, 1), tags[rows].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
