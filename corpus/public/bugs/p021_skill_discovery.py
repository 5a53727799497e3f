"""Contrast of state and next state, from pixels."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
frames = torch.rand(400, 1, 8, 8)
after = (frames + 0.05 * torch.randn_like(frames)).clamp(0, 1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.query = nn.Linear(128, 32)
        self.key = nn.Linear(128, 32)
        self.opt = torch.optim.Adam(self.parameters(), lr=1e-3)

    def embed(self, obs):
        with torch.no_grad():
            code = self.encoder(obs)
        return code

    def update(self, obs, following):
        q = F.normalize(self.query(self.embed(obs - 0.5)), dim=1)
        k = F.normalize(self.key(self.embed(following - 0.5)), dim=1)
        loss = F.cross_entropy(q @ k.T / 0.2, torch.arange(len(obs)))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


agent = Agent()
for step in range(50):
    rows = torch.randint(0, 400, (32,))
    agent.update(frames[rows], after[rows])
