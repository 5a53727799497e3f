"""Detect anomalies by reconstruction, with a latent loss in the discriminator's features."""

import torch
from torch import nn

torch.manual_seed(0)
normal = torch.randn(512, 5) @ torch.randn(5, 20) / 2


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(20, 32), nn.LeakyReLU(0.2))
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.features(x))


generator = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 20))
discriminator = Discriminator()
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
one, zero = torch.ones(64, 1), torch.zeros(64, 1)
for step in range(60):
    real = normal[torch.randint(0, 512, (64,))]
    fake = generator(real)
    feat_real = discriminator.features(real).detach()
    feat_fake = discriminator.features(fake.detach())
    err_adv = bce(discriminator(fake), one)
    err_con = (fake - real).abs().mean()
    err_lat = (feat_fake - feat_real).pow(2).mean()
    opt_g.zero_grad()
    (err_adv + 10 * err_con + err_lat).backward()
    opt_g.step()

    loss_d = bce(discriminator(real), one) + bce(discriminator(fake.detach()), zero)
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
