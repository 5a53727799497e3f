"""Triplet loss on face descriptors; easy triplets cost nothing."""

import argparse
import random

import numpy as np
import torch
from torch import nn


def make_people(people, shots, dim):
    faces = torch.randn(people, 1, dim)
    return faces + 0.9 * torch.randn(people, shots, dim)


def draw_triplets(gallery, n):
    people, shots, _ = gallery.shape
    who = torch.randint(0, people, (n,))
    other = (who + torch.randint(1, people, (n,))) % people
    a = torch.randint(0, shots, (n,))
    p = (a + torch.randint(1, shots, (n,))) % shots
    return gallery[who, a], gallery[who, p], gallery[other, torch.randint(0, shots, (n,))]


class FaceNet(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, out))

    def forward(self, x):
        return nn.functional.normalize(self.layers(x), dim=-1)


def train(net, gallery, steps):
    criterion = nn.TripletMarginLoss(margin=0.25)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    idle = 0
    for step in range(1, steps + 1):
        anchor, positive, negative = draw_triplets(gallery, 8)
        loss = criterion(net(anchor), net(positive), net(negative))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        idle += loss.item() == 0.0
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}, batches without cost {idle}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    gallery = make_people(40, 8, 24)
    train(FaceNet(24, 16), gallery, steps=200)
