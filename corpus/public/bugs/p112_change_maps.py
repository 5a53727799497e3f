"""Change detection between two pictures with an adversarial term."""

import torch
from torch import nn

torch.manual_seed(0)
before = torch.randn(96, 1, 12, 12)
change = (torch.rand(96, 1, 12, 12) > 0.7).float()
after = before + 1.5 * change

netg = nn.Sequential(
    nn.Conv2d(2, 16, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 3, padding=1), nn.Sigmoid()
)
netd = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(576, 1)
)
optimizer_d = torch.optim.Adam(netd.parameters(), lr=2e-4)
optimizer_g = torch.optim.Adam(netg.parameters(), lr=1e-3)
l_con, l_adv = nn.BCELoss(), nn.BCEWithLogitsLoss()

for epoch in range(3):
    for rows in torch.randperm(96).split(16):
        pair = torch.cat([before[rows], after[rows]], 1)
        gt = change[rows]
        fake = netg(pair)
        # discriminator
        pred_real = netd(gt)
        pred_fake = netd(fake.detach())
        err_d = l_adv(pred_real, torch.ones_like(pred_real))
        err_d = 0.5 * (err_d + l_adv(pred_fake, torch.zeros_like(pred_fake)))
        optimizer_d.zero_grad()
        err_d.backward()
        optimizer_d.step()
        # generator
        pred_fake = netd(fake)
        err_g_adv = l_adv(pred_fake.detach(), torch.ones_like(pred_fake))
        err_g = l_con(fake, gt) + 0.1 * err_g_adv
        optimizer_g.zero_grad()
        err_g.backward()
        optimizer_g.step()
