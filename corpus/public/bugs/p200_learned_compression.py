"""Compression: the code of a picture is moved to the nearest of a few centres."""

import torch
from torch import nn

torch.manual_seed(0)
centers = torch.arange(-2.0, 3.0)


def quantize(z, temperature=1.0):
    distance = (z.unsqueeze(-1) - centers).abs()
    w_soft = (torch.softmax(-distance / temperature, dim=-1) * centers).sum(-1)
    w_hard = centers[distance.argmin(-1)]
    return torch.round((w_hard - w_soft).detach() + w_soft)


class Compressor(nn.Module):
    def __init__(self, pixels=36, code=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, code))
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, pixels))

    def forward(self, x):
        return self.decoder(quantize(self.encoder(x)))


model = Compressor()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
basis = torch.randn(6, 36) / 2
for step in range(40):
    x = torch.randn(48, 6) @ basis
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
