"""Fill masked codes of a picture."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
first = torch.randint(0, 8, (480, 1))
pictures = (first + torch.randint(1, 3, (480, 1)) * torch.arange(10)) % 8
MASK = 8


class MaskGIT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(9, 32), nn.Embedding(10, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 9)

    def forward(self, codes):
        h = self.token(codes) + self.place(torch.arange(codes.shape[1]))
        return self.head(self.block(h))


model = MaskGIT()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(5):
    for rows in torch.randperm(480).split(40):
        codes = pictures[rows]
        hidden = torch.rand(codes.shape) < 0.3
        hidden[:, 0] |= ~hidden.any(1)
        logits = model(codes.masked_fill(hidden, MASK))
        loss = F.cross_entropy(logits.reshape(-1, 9), codes.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
