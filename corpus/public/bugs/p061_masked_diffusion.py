"""Denoise only the masked subject of a picture (a step of diffusion)."""

import torch
from torch import nn

torch.manual_seed(0)
pictures = torch.randn(256, 6) @ torch.randn(6, 24) / 3
masks = (torch.rand(256, 24) < torch.rand(256, 1)).float()
masks[17] = 0


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(10, 24)
        self.net = nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 24))

    def forward(self, x, t):
        return self.net(x + self.time(t))


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
level = torch.linspace(0.1, 0.9, 10)
for epoch in range(4):
    for rows in torch.randperm(256).split(32):
        clean, mask = pictures[rows], masks[rows]
        t = torch.randint(0, 10, (len(rows),))
        noise = torch.randn_like(clean)
        noisy = (1 - level[t, None]).sqrt() * clean + level[t, None].sqrt() * noise
        gap = (model(noisy, t) - noise) ** 2
        loss = (gap * mask).sum(1) / mask.sum(1)
        loss = loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
