"""An audio codec: frames of a waveform, an encoder, three residual quantizers, a decoder."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Codebook(nn.Module):
    def __init__(self, size=32, dim=8):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(size, dim) * 0.5)

    def forward(self, x):
        codes = torch.cdist(x.detach(), self.embed.detach()).argmin(-1)
        chosen = F.embedding(codes, self.embed)
        commitment = F.mse_loss(x, chosen.detach())
        fit = F.mse_loss(chosen, x.detach())
        return x + (chosen - x).detach(), commitment, fit


class ResidualQuantizer(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Codebook() for _ in range(layers))

    def forward(self, x):
        residual, total = x, 0.0
        commitments, fits = [], []
        for layer in self.layers:
            quantized, commitment, fit = layer(residual)
            residual = residual - quantized
            total = total + quantized
            commitments.append(commitment)
            fits.append(fit)
        return total, torch.stack(commitments), torch.stack(fits)


class Codec(nn.Module):
    def __init__(self, frame=24, dim=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(frame, 48), nn.ELU(), nn.Linear(48, dim))
        self.quantizer = ResidualQuantizer()
        self.decoder = nn.Sequential(nn.Linear(dim, 48), nn.ELU(), nn.Linear(48, frame))

    def forward(self, x):
        latent, commitments, fits = self.quantizer(self.encoder(x))
        return self.decoder(latent), commitments, fits


def waves(count=48, length=24):
    t = torch.linspace(0, 1, length)
    speed, phase = 1 + 4 * torch.rand(count, 1), 6.28 * torch.rand(count, 1)
    return torch.sin(6.28 * speed * t + phase) * (0.5 + torch.rand(count, 1))


codec = Codec()
optimizer = torch.optim.Adam(codec.parameters(), lr=2e-3)
for step in range(30):
    x = waves()
    y, commitments, fits = codec(x)
    loss = F.mse_loss(y, x) + fits.sum()
    for commitment in commitments:
        loss = loss + 0.25 * commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
