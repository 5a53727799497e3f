"""Proximal policy optimisation with minibatches of one large batch."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt_p = torch.optim.Adam(policy.parameters(), lr=1e-3)
opt_v = torch.optim.SGD(critic.parameters(), lr=0.05)
worth = torch.randn(8, 3)
BATCH, MINI = 128, 32
for iteration in range(30):
    obs = torch.randn(BATCH, 8)
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=policy(obs))
        actions = dist.sample()
        old = dist.log_prob(actions)
        reward = (obs @ worth).gather(1, actions[:, None]) / 3
    returns = reward
    advantage = (reward - critic(obs).detach()).squeeze(1)
    opt_p.zero_grad()
    opt_v.zero_grad()
    for rows in torch.randperm(BATCH).split(MINI):
        ratio = MINI / BATCH
        dist = torch.distributions.Categorical(logits=policy(obs[rows]))
        change = (dist.log_prob(actions[rows]) - old[rows]).exp()
        policy_loss = -(change * advantage[rows]).mean() * ratio
        value_loss = nn.functional.mse_loss(critic(obs[rows]), returns[rows])
        policy_loss.backward()
        value_loss.backward()
    opt_p.step()
    opt_v.step()
