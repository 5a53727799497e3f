"""A variational autoencoder for outliers, trained by the evidence bound."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
factors = torch.randn(512, 3)
data = torch.tanh(factors @ torch.randn(3, 16)) + 0.1 * torch.randn(512, 16)
loader = DataLoader(TensorDataset(data), batch_size=64, shuffle=True)


class VAE(nn.Module):
    def __init__(self, latent=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.mu, self.logvar = nn.Linear(32, latent), nn.Linear(32, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.decoder(z), mu, logvar


def elbo(x, recon, mu, logvar):
    recon_loss = 20 * nn.functional.mse_loss(recon, x)
    kl_loss = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return recon_loss + kl_loss


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    for (x,) in loader:
        loss = elbo(x, *model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
