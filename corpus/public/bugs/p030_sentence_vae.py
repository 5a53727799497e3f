"""A variational autoencoder of short sentences."""

import torch
from torch import nn

torch.manual_seed(0)
first = torch.randint(0, 10, (400, 1))
sentences = (first + torch.arange(6) * torch.randint(1, 3, (400, 1))) % 10


class SentenceVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2
        self.embedding = nn.Embedding(11, 24)
        self.encoder = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.mean, self.logv = nn.Linear(64, 8), nn.Linear(64, 8)
        self.start = nn.Linear(8, 32)
        self.decoder = nn.GRU(24, 32, batch_first=True)
        self.words = nn.Linear(32, 10)

    def forward(self, ids):
        batch = ids.size(0)
        _, hidden = self.encoder(self.embedding(ids))
        hidden = hidden.view(batch, self.factor * 32)
        mean, logv = self.mean(hidden), self.logv(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * logv).exp()
        shifted = torch.cat([torch.full((batch, 1), 10), ids[:, :-1]], 1)
        out, _ = self.decoder(self.embedding(shifted), self.start(z).unsqueeze(0))
        return self.words(out), mean, logv


model = SentenceVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for epoch in range(5):
    for rows in torch.randperm(400).split(40):
        logits, mean, logv = model(sentences[rows])
        nll = nn.functional.cross_entropy(logits.transpose(1, 2), sentences[rows])
        kl = -0.5 * (1 + logv - mean**2 - logv.exp()).mean()
        loss = nll + 0.05 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
