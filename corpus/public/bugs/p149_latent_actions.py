"""Latent actions between two frames, quantized, in a small world model."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class VectorQuantizer(nn.Module):
    def __init__(self, codes=16, dim=12):
        super().__init__()
        self.codebook = nn.Embedding(codes, dim)

    def forward(self, z_e):
        distance = torch.cdist(z_e, self.codebook.weight)
        indices = distance.argmin(dim=-1)
        z = self.codebook(indices)
        z_q = z_e + (z - z_e).detach()
        return z_q, z, indices


class LatentActionModel(nn.Module):
    def __init__(self, size=20, dim=12, beta=0.25):
        super().__init__()
        self.beta = beta
        self.encode = nn.Sequential(nn.Linear(2 * size, 64), nn.GELU(), nn.Linear(64, dim))
        self.vq = VectorQuantizer(dim=dim)
        self.decode = nn.Sequential(nn.Linear(size + dim, 64), nn.GELU(), nn.Linear(64, size))

    def forward(self, now, after):
        z_e = self.encode(torch.cat([now, after], -1))
        z_q, z, indices = self.vq(z_e)
        predicted = self.decode(torch.cat([now, z_q], -1))
        reconstruction = F.mse_loss(predicted, after)
        codebook_loss = F.mse_loss(z_q, z_e.detach())
        commitment_loss = F.mse_loss(z_e, z_q.detach())
        loss = reconstruction + codebook_loss + self.beta * commitment_loss
        return {"loss": loss, "reconstruction": reconstruction}


def main(args):
    torch.manual_seed(args.seed)
    moves = torch.randn(8, 20)
    model = LatentActionModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    for step in range(args.steps):
        now = torch.randn(args.batch, 20)
        after = now + moves[torch.randint(8, (args.batch,))]
        losses = model(now, after)
        optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_known_args()[0])
