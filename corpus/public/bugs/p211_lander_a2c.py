"""Advantage actor-critic on several copies of a small world."""

import torch
from torch import nn

torch.manual_seed(0)
ENVS, STEPS = 6, 12


class A2C(nn.Module):
    def __init__(self, features=5, actions=3):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, actions))
        self.critic_optim = torch.optim.RMSprop(self.critic.parameters(), lr=2e-3)
        self.actor_optim = torch.optim.RMSprop(self.actor.parameters(), lr=1e-3)

    def get_losses(self, rewards, log_probs, values, masks, gamma=0.95, lam=0.9):
        advantages = torch.zeros(STEPS, ENVS)
        gae = torch.zeros(ENVS)
        for t in reversed(range(STEPS - 1)):
            td_error = rewards[t] + gamma * masks[t] * values[t + 1] - values[t]
            gae = td_error + gamma * lam * masks[t] * gae
            advantages[t] = gae
        critic_loss = advantages.pow(2).mean()
        actor_loss = -(advantages.detach() * log_probs).mean()
        return critic_loss, actor_loss

    def update(self, critic_loss, actor_loss):
        self.critic_optim.zero_grad()
        critic_loss.backward()
        self.critic_optim.step()
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()


agent = A2C()
for phase in range(30):
    s = torch.randn(ENVS, 5)
    rewards, masks = torch.zeros(STEPS, ENVS), torch.ones(STEPS, ENVS)
    values, log_probs = torch.zeros(STEPS, ENVS), torch.zeros(STEPS, ENVS)
    for t in range(STEPS):
        policy = torch.distributions.Categorical(logits=agent.actor(s))
        a = policy.sample()
        rewards[t] = (a == s[:, :3].argmax(1)).float() + 0.3 * s[:, 3]
        values[t], log_probs[t] = agent.critic(s).squeeze(1), policy.log_prob(a)
        masks[t] = (torch.rand(ENVS) > 0.05).float()
        s = 0.8 * s + 0.4 * torch.randn(ENVS, 5)
    agent.update(*agent.get_losses(rewards, log_probs, values, masks))
