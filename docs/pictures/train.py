"""A plain training script for the picture: one sample on the way has no token that counts."""

import torch

PAD = 0


def masked_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    real = (tokens != PAD).float()
    per_sample = (each * real).sum(dim=1) / real.sum(dim=1)
    return per_sample.mean()


torch.manual_seed(0)
texts = torch.randint(1, 50, (480, 12))
texts[331] = PAD
loader = torch.utils.data.DataLoader(texts, batch_size=8)
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for tokens in loader:
    loss = masked_loss(model(tokens), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
