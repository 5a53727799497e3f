"""A small GAN that learns to draw curves."""

import torch
from torch import nn

torch.manual_seed(0)
BATCH, IDEAS, POINTS = 32, 5, 15
paint_points = torch.linspace(-1, 1, POINTS).expand(BATCH, POINTS)


def artist_works():
    return torch.sin(3.14 * paint_points) + 0.02 * torch.randn(BATCH, POINTS)


G = nn.Sequential(nn.Linear(IDEAS, 64), nn.ReLU(), nn.Linear(64, POINTS))
D = nn.Sequential(nn.Linear(POINTS, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
opt_D = torch.optim.Adam(D.parameters(), lr=1e-3)
opt_G = torch.optim.Adam(G.parameters(), lr=1e-3)

for step in range(30):
    paintings = artist_works()
    drawings = G(torch.randn(BATCH, IDEAS))
    prob_artist0 = D(paintings)
    prob_artist1 = D(drawings)
    D_loss = -torch.mean(torch.log(prob_artist0) + torch.log(1.0 - prob_artist1))
    G_loss = torch.mean(torch.log(1.0 - prob_artist1))
    opt_D.zero_grad()
    D_loss.backward(retain_graph=True)
    opt_D.step()
    opt_G.zero_grad()
    G_loss.backward()
    opt_G.step()
