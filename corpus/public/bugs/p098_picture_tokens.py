"""Generate the codes of a picture from a caption."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
captions = torch.randint(0, 8, (400,))
grid = torch.arange(12)
picture_codes = (captions[:, None] * (grid % 3) + grid) % 6


class Parti(nn.Module):
    def __init__(self):
        super().__init__()
        self.caption = nn.Embedding(8, 32)
        self.code = nn.Embedding(7, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.to_logits = nn.Linear(48, 6)

    def forward(self, caption, codes):
        start = torch.full((len(codes), 1), 6)
        h = self.code(torch.cat([start, codes[:, :-1]], 1)) + self.caption(caption)[:, None]
        logits = self.to_logits(self.rnn(h)[0])
        loss = F.cross_entropy(logits.transpose(1, 2), codes, ignore_index=0)
        return loss


model = Parti()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(5):
    for rows in torch.randperm(400).split(40):
        loss = model(captions[rows], picture_codes[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
