"""Attention over a varying number of patches of a slide."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
slides = [torch.randn(int(n), 12) for n in torch.randint(3, 12, (300,))]
label = torch.tensor([int(s[:, 0].mean() > 0) for s in slides])


def collate(rows):
    bags = [slides[row] for row in rows]
    mask = pad_sequence([torch.ones(len(bag)) for bag in bags], batch_first=True)
    return pad_sequence(bags, batch_first=True), mask, label[rows]


class AttentionMIL(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.score = nn.Linear(32, 1)
        self.head = nn.Linear(32, 2)

    def forward(self, x, mask):
        patches = self.embed(x)
        scores = self.score(patches).squeeze(-1) * mask
        weights = torch.softmax(scores, dim=1)
        return self.head((weights.unsqueeze(-1) * patches).sum(1))


model = AttentionMIL()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(5):
    for x, mask, y in DataLoader(range(300), 30, shuffle=True, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(x, mask), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
