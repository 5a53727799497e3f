"""A Gaussian policy learns its scale without a positivity constraint: torch.distributions
refuses it."""

import torch
from torch import nn
from torch.distributions import Normal


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.full((2,), 0.5))

    def forward(self, state):
        return Normal(self.mean(state), self.scale)  # HERE


def rollout(policy, generator):
    state = torch.randn(64, 4, generator=generator)
    distribution = policy(state)
    action = distribution.sample()
    reward = -(action - state[:, :2]).pow(2).sum(1)
    return distribution.log_prob(action).sum(1), reward


def train():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for update in range(400):
        log_prob, reward = rollout(policy, generator)
        loss = -(log_prob * (reward - reward.mean())).mean() + 0.2 * policy.scale.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if update == 90:
                policy.scale[1] = -0.01


train()
