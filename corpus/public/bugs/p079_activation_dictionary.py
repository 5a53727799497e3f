"""A sparse autoencoder of activations."""

import torch
from torch import nn

torch.manual_seed(0)
activations = torch.randn(1024, 6) @ torch.randn(6, 24) / 2.5
encoder = nn.Sequential(nn.Linear(24, 48), nn.ReLU())
decoder = nn.Linear(48, 24)
model = nn.ModuleList([encoder, decoder])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(80):
    batch = activations[torch.randint(0, 1024, (128,))]
    code = encoder(batch)
    decoded = decoder(code)
    reconstruction = ((decoded - batch) ** 2).mean(-1).sum()
    sparsity = code.abs().mean(-1).sum()
    loss = reconstruction + 0.01 * sparsity
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
