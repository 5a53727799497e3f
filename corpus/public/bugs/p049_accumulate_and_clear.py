"""Train a denoising autoencoder of features with micro-batches."""

import torch
from torch import nn

torch.manual_seed(0)
ACCUMULATE = 4
features = torch.randn(600, 6) @ torch.randn(6, 24) / 3
model = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(30):
    for micro in range(ACCUMULATE):
        optimizer.zero_grad(set_to_none=True)
        clean = features[torch.randint(0, 600, (16,))]
        noisy = clean + 0.2 * torch.randn_like(clean)
        loss = nn.functional.mse_loss(model(noisy), clean) / ACCUMULATE
        loss.backward()
    optimizer.step()
