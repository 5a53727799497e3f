"""DCGAN on 8x8 blobs."""

import argparse

import torch
import torch.nn as nn


def weights_init(m):
    name = m.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    nz = 16
    netG = nn.Sequential(
        nn.ConvTranspose2d(nz, 32, 4, 1, 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    netD = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 2, 1, 0, bias=False),
    )
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
    grid = torch.arange(8.0)
    for i in range(120):
        c = torch.rand(32, 2, 1) * 4 + 2
        gx = torch.exp(-((grid - c[:, 0]) ** 2) / 4)
        gy = torch.exp(-((grid - c[:, 1]) ** 2) / 4)
        real = (gx[:, :, None] * gy[:, None, :]).unsqueeze(1) * 2 - 1
        netD.zero_grad()
        out = netD(real).view(-1)
        errD_real = criterion(out, torch.ones_like(out))
        errD_real.backward()
        fake = netG(torch.randn(32, nz, 1, 1))
        out = netD(fake.detach()).view(-1)
        errD_fake = criterion(out, torch.zeros_like(out))
        errD_fake.backward()
        optD.step()
        netG.zero_grad()
        out = netD(fake).view(-1)
        errG = criterion(out, torch.ones_like(out))
        errG.backward()
        optG.step()
        if i % 20 == 0:
            print(f"[{i}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}")


if __name__ == "__main__":
    main()
