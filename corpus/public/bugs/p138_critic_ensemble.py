"""An ensemble of critics for randomised ensembled double Q-learning."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class Critic(nn.Module):
    def __init__(self, states=6, actions=2):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(states + actions, 48),
            nn.ReLU(),
            nn.Linear(48, 48),
            nn.ReLU(),
            nn.Linear(48, 1),
        )

    def forward(self, s, a):
        return self.net(torch.cat([s, a], 1)).squeeze(1)


class EnsembleCritic(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        critic = Critic()
        self.critics = nn.ModuleList([copy.deepcopy(critic) for _ in range(size)])

    def forward(self, s, a):
        return torch.stack([critic(s, a) for critic in self.critics])


ensemble = EnsembleCritic()
target = copy.deepcopy(ensemble).requires_grad_(False)
actor = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2), nn.Tanh())
critic_optimizer = torch.optim.Adam(ensemble.parameters(), lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
for step in range(25):
    s = torch.randn(48, 6)
    a = torch.tanh(torch.randn(48, 2))
    s2 = 0.8 * s + 0.1 * torch.randn(48, 6)
    r = (a * s[:, :2]).sum(1)
    with torch.no_grad():
        pick = torch.randperm(4)[:2]
        y = r + 0.9 * target(s2, actor(s2))[pick].min(0).values
    loss = nn.functional.mse_loss(ensemble(s, a), y.expand(4, -1))
    critic_optimizer.zero_grad()
    loss.backward()
    critic_optimizer.step()
    actor_loss = -ensemble(s, actor(s)).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    with torch.no_grad():
        for p, tp in zip(ensemble.parameters(), target.parameters()):
            tp.lerp_(p, 0.01)
