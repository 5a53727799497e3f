"""Soft actor-critic on a replay buffer of a walker with four joints."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
STATE, ACTION = 8, 4


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE, 32), nn.ReLU())
        self.mu, self.log_std = nn.Linear(32, ACTION), nn.Linear(32, ACTION)

    def forward(self, state):
        h = self.body(state)
        dist = torch.distributions.Normal(self.mu(h), self.log_std(h).clamp(-3, 1).exp())
        sample = dist.rsample()
        log_prob = dist.log_prob(sample) - torch.log(1 - torch.tanh(sample).pow(2) + 1e-6)
        return torch.tanh(sample), log_prob


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE + ACTION, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, state, action):
        return self.net(torch.cat([state, action], -1))


actor, critic = Actor(), Critic()
goal = copy.deepcopy(critic).requires_grad_(False)
opt_a = torch.optim.Adam(actor.parameters(), lr=1e-3)
opt_q = torch.optim.Adam(critic.parameters(), lr=3e-3)
buffer = torch.randn(2000, STATE), torch.rand(2000, ACTION) * 2 - 1
reward = torch.tanh(buffer[0][:, :1] + buffer[1].sum(1, keepdim=True))
after = buffer[0] + 0.1 * torch.randn(2000, STATE)
for step in range(60):
    rows = torch.randint(0, 2000, (64,))
    state, action = buffer[0][rows], buffer[1][rows]
    next_action, log_prob = actor(after[rows])
    target = reward[rows] + 0.9 * (goal(after[rows], next_action) - 0.05 * log_prob)
    loss_q = F.mse_loss(critic(state, action), target.detach())
    opt_q.zero_grad()
    loss_q.backward()
    opt_q.step()
    new, log_prob = actor(state)
    loss_a = (0.05 * log_prob - critic(state, new)).mean()
    opt_a.zero_grad()
    loss_a.backward()
    opt_a.step()
    with torch.no_grad():
        for a, b in zip(goal.parameters(), critic.parameters()):
            a.lerp_(b, 0.02)
