"""A template of a generative adversarial network on two-dimensional points."""

import torch
from torch import nn

torch.manual_seed(0)


def real_points(n):
    angle = torch.rand(n) * 6.2832
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
adversarial = nn.BCEWithLogitsLoss()
valid, fake = torch.ones(64, 1), torch.zeros(64, 1)
for epoch in range(2):
    for batch in range(30):
        z = torch.randn(64, 8)
        g_loss = adversarial(discriminator(generator(z)), valid)
        g_loss.backward()
        opt_g.step()
        opt_g.zero_grad()

        real_loss = adversarial(discriminator(real_points(64)), valid)
        fake_loss = adversarial(discriminator(generator(z).detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        opt_d.step()
        opt_d.zero_grad()
