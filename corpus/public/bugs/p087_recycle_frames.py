"""Translate frames with a generator, a reconstruction loss and a discriminator."""

import torch
from torch import nn

torch.manual_seed(0)
source = torch.randn(480, 12)
target = torch.tanh(source @ torch.randn(12, 12) / 3)
generator = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 12))
discriminator = nn.Sequential(nn.Linear(12, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
one, zero = torch.ones(48, 1), torch.zeros(48, 1)


def update_generator(frame, true_frame):
    fake_frame = generator(frame)
    adversarial = bce(discriminator(true_frame), one)
    recycle = nn.functional.l1_loss(fake_frame, true_frame)
    loss = recycle * 5 + adversarial
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()


def update_discriminator(frame, true_frame):
    fake_frame = generator(frame).detach()
    loss = bce(discriminator(true_frame), one) + bce(discriminator(fake_frame), zero)
    opt_d.zero_grad()
    loss.backward()
    opt_d.step()


for step in range(60):
    rows = torch.randint(0, 480, (48,))
    update_generator(source[rows], target[rows])
    update_discriminator(source[rows], target[rows])
