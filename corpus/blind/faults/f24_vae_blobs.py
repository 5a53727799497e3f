"""Variational autoencoder on synthetic vectors."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self, d=30, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, z), nn.Linear(64, z)
        self.dec = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def vae_loss(rec, x, mu, logvar, beta):
    recon_loss = F.mse_loss(rec, x, reduction="none").sum(1).mean()
    kl_loss = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return recon_loss + beta * kl_loss.item(), {"recon": recon_loss.item(), "kl": kl_loss.item()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beta", type=float, default=1.0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    data = torch.tanh(torch.randn(1000, 4) @ torch.randn(4, 30)) + 0.1 * torch.randn(1000, 30)
    loader = DataLoader(data, batch_size=50, shuffle=True)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        for x in loader:
            rec, mu, logvar = model(x)
            loss, logs = vae_loss(rec, x, mu, logvar, args.beta)
            opt.zero_grad()
            loss.backward()
            opt.step()
        parts = " ".join(f"{k} {v:.3f}" for k, v in logs.items())
        print(f"epoch {epoch} loss {loss.item():.3f} {parts}")


if __name__ == "__main__":
    main()
