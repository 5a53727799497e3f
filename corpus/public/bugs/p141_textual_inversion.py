"""One new word for a frozen text encoder: only its own row may be learned."""

import torch
from torch import nn

torch.manual_seed(0)
VOCAB, NEW = 30, 29


class TextEncoder(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, 8))

    def forward(self, ids):
        return self.mix(self.token_embedding(ids).mean(1))


text_encoder = TextEncoder()
text_encoder.mix.requires_grad_(False)
optimizer = torch.optim.AdamW(text_encoder.token_embedding.parameters(), lr=5e-3, weight_decay=1e-2)
style = torch.randn(8)
index_no_updates = torch.arange(VOCAB) != NEW
for step in range(30):
    ids = torch.randint(VOCAB - 1, (16, 6))
    ids[:, 2] = NEW
    loss = nn.functional.mse_loss(text_encoder(ids), style.expand(16, -1))
    loss.backward()
    grads = text_encoder.token_embedding.weight.grad
    grads.data[index_no_updates, :] = 0
    optimizer.step()
    optimizer.zero_grad()
