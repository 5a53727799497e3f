"""Proximal policy updates for a point that has to be pushed to the origin."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class RolloutStorage:
    def __init__(self, num_envs=32, steps=16):
        self.num_envs, self.steps = num_envs, steps
        self.rows = []

    def add(self, *values):
        self.rows.append(values)

    def clear(self):
        self.rows = []

    def mini_batch_generator(self, num_mini_batches=4, num_epochs=4):
        columns = [torch.cat(column) for column in zip(*self.rows)]
        batch_size = self.num_envs * self.steps
        mini = batch_size // num_mini_batches
        indices = torch.randperm(batch_size)
        for epoch in range(num_epochs):
            for i in range(num_mini_batches):
                chosen = indices[i * mini : (i + 1) * mini]
                yield [column[chosen] for column in columns]


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def forward(self, obs):
        return Normal(self.actor(obs), self.log_std.exp()), self.critic(obs).squeeze(-1)


model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
storage = RolloutStorage()

for iteration in range(4):
    place, speed = torch.randn(32, 2), torch.zeros(32, 2)
    storage.clear()
    for t in range(storage.steps):
        obs = torch.cat([place, speed], 1)
        with torch.no_grad():
            policy, value = model(obs)
            action = policy.sample()
        log_prob = policy.log_prob(action).sum(-1)
        speed = 0.8 * speed + 0.2 * action.clamp(-2, 2)
        place = place + 0.3 * speed
        reward = -(place**2).sum(-1).clamp(max=4.0)
        with torch.no_grad():
            later = model(torch.cat([place, speed], 1))[1]
        target = 0.1 * reward + 0.9 * later
        storage.add(obs, action, log_prob, target, target - value)
    for obs, action, old, target, advantage in storage.mini_batch_generator():
        policy, value = model(obs)
        ratio = (policy.log_prob(action).sum(-1) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(0.8, 1.2) * advantage
        loss = -torch.min(ratio * advantage, clipped).mean()
        loss = loss + 0.5 * nn.functional.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
