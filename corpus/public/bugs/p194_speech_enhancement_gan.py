"""Enhancement of noisy speech with two discriminators."""

import torch
from torch import nn

torch.manual_seed(0)


class Discriminator(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 12, kernel, stride=2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(12, 12, kernel, stride=2),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.LazyLinear(1),
        )

    def forward(self, x):
        return self.net(x.unsqueeze(1))


class UniverseGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.enhance = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
        self.loss_mrd, self.loss_mpd = Discriminator(5), Discriminator(9)

    def configure_optimizers(self):
        params_disc = list(self.loss_mrd.parameters()) + list(self.loss_mrd.parameters())
        params_disc = list(dict.fromkeys(params_disc))
        return (
            torch.optim.Adam(self.enhance.parameters(), lr=1e-3),
            torch.optim.Adam(params_disc, lr=1e-3, betas=(0.5, 0.9)),
        )

    def discriminate(self, x):
        return torch.cat([self.loss_mrd(x), self.loss_mpd(x)], dim=1)


model = UniverseGAN()
model.discriminate(torch.randn(2, 64))
opt_gen, opt_disc = model.configure_optimizers()
grid = torch.linspace(0, 6, 64)
for step in range(30):
    clean = torch.sin(grid * (1 + 3 * torch.rand(24, 1)))
    noisy = clean + 0.4 * torch.randn_like(clean)
    enhanced = model.enhance(noisy)
    real, fake = model.discriminate(clean), model.discriminate(enhanced.detach())
    disc_loss = ((real - 1) ** 2).mean() + (fake**2).mean()
    opt_disc.zero_grad()
    disc_loss.backward()
    opt_disc.step()
    gen_loss = ((model.discriminate(enhanced) - 1) ** 2).mean()
    gen_loss = gen_loss + 10 * nn.functional.l1_loss(enhanced, clean)
    opt_gen.zero_grad()
    gen_loss.backward()
    opt_gen.step()
