"""Loop: main with argparse, rays drawn by a permutation.

Fault: log of a transparency of 0; exp hides it until the backward pass; ops: log.
"""

import argparse

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, points):
        density, colour = self.layers(points).unbind(dim=-1)
        return density.relu(), colour.sigmoid()


def render(field, points):
    density, colour = field(points)
    alpha = 1 - torch.exp(-density)
    clear = torch.log(1 - alpha)  # <- origin
    through = torch.exp(clear.cumsum(dim=-1) - clear)
    return (through * alpha * colour).sum(dim=-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rays", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(423)
    points = torch.randn(48, 12, 3)
    points[20, :] *= 900.0
    seen = torch.rand(48)
    field = Field(args.width)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
    for rows in torch.arange(48).split(args.rays):
        loss = (render(field, points[rows]) - seen[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
