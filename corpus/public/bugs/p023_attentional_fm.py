"""Click prediction with an attentional factorization machine."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
fields = torch.randint(0, 12, (480, 5)) + torch.arange(5) * 12
click = ((fields[:, 0] % 12 + fields[:, 1] % 12) > 11).float()


class AFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        self.linear = nn.Embedding(60, 1)
        self.attention = nn.Linear(16, 8)
        self.projection = nn.Linear(8, 1)
        self.fc = nn.Linear(16, 1)
        nn.init.normal_(self.linear.weight, std=0.01)
        nn.init.normal_(self.embedding.weight, std=0.3)

    def forward(self, x):
        e = self.embedding(x)
        i, j = torch.triu_indices(5, 5, 1)
        inner = e[:, i] * e[:, j]
        scores = torch.softmax(self.projection(torch.relu(self.attention(inner))), dim=1)
        scores = F.dropout(scores, p=0.3)
        pooled = (scores * inner).sum(1)
        return (self.linear(x).sum(1) + self.fc(pooled)).squeeze(1)


def evaluate(model):
    model.eval()
    with torch.no_grad():
        return F.binary_cross_entropy_with_logits(model(fields[384:]), click[384:]).item()


model = AFM()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    model.train()
    for rows in torch.randperm(384).split(32):
        loss = F.binary_cross_entropy_with_logits(model(fields[rows]), click[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, evaluate(model))
