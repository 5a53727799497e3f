"""Denoising autoencoder with a periodic linear probe of the features."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(32, 64)
        self.fc2 = nn.Linear(64, 8)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 64)
        self.fc2 = nn.Linear(64, 32)

    def forward(self, z):
        return self.fc2(F.relu(self.fc1(z)))


def linear_probe(encoder, x, y):
    for p in encoder.parameters():
        p.requires_grad = False
    z = encoder(x)
    z = torch.cat([z, torch.ones(len(z), 1)], dim=1)
    w = torch.linalg.lstsq(z, F.one_hot(y, 4).float()).solution
    return ((z @ w).argmax(1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    y = torch.randint(0, 4, (800,))
    x = torch.randn(4, 32)[y] + 0.3 * torch.randn(800, 8) @ torch.randn(8, 32)
    encoder, decoder = Encoder(), Decoder()
    params = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = torch.optim.Adam(params, lr=1e-3)

    step = 0
    for epoch in range(8):
        perm = torch.randperm(800)
        for i in range(0, 800, 40):
            xb = x[perm[i : i + 40]]
            rec = decoder(encoder(xb + 0.2 * torch.randn_like(xb)))
            loss = F.mse_loss(rec, xb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        if epoch == 1:
            print(f"  probe accuracy {linear_probe(encoder, x, y):.3f}")


if __name__ == "__main__":
    main()
