"""Convolutional autoencoder on images scaled to [-1, 1]."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Patterns(Dataset):
    def __init__(self, n, transform=None):
        yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        freq, phase = torch.rand(n, 2) * 0.6 + 0.1, torch.rand(n) * 6.28
        grid = freq[:, 0, None, None] * xx + freq[:, 1, None, None] * yy + phase[:, None, None]
        self.images = (0.5 + 0.5 * torch.sin(grid)).unsqueeze(1)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = self.images[i]
        return self.transform(img) if self.transform else img


def normalize(img, mean=0.5, std=0.5):
    return (img - mean) / std


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 2, stride=2),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(Patterns(640, transform=normalize), batch_size=32, shuffle=True)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(6):
        total = 0.0
        for img in loader:
            recon = model(img)
            loss = F.mse_loss(recon, img)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} recon {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
