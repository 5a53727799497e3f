"""Captions after a picture's features, with the loss inside the model."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
VOCAB = 18


def causal_lm_loss(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]
    return nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))


class Captions(Dataset):
    def __init__(self, count=192):
        self.kind = torch.randint(4, (count,))
        self.pixels = nn.functional.one_hot(self.kind, 4).float() + 0.1 * torch.randn(count, 4)
        start = torch.randint(VOCAB, (count, 1))
        self.ids = (start + (self.kind[:, None] + 1) * torch.arange(11)) % VOCAB

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"pixel_values": self.pixels[index], "input_ids": ids, "labels": ids.clone()}


class GitLike(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.vision = nn.Linear(4, dim)
        self.embed = nn.Embedding(VOCAB, dim)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, VOCAB)

    def forward(self, pixel_values, input_ids, labels=None):
        state = torch.tanh(self.vision(pixel_values))[None]
        hidden, _ = self.decoder(self.embed(input_ids), state)
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            shifted_logits = logits[:, :-1]
            labels = labels[:, 1:]
            loss = causal_lm_loss(shifted_logits, labels)
        return loss, logits


model = GitLike()
loader = DataLoader(Captions(), batch_size=24, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(3):
    for batch in loader:
        loss, _ = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
