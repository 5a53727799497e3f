"""Actor and critic with an optimizer each; gradients are clipped before every update."""

import torch
from torch import nn

torch.manual_seed(0)


class ActorCritic:
    def __init__(self, max_norm=0.5):
        self.torso = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        self.pi = nn.Linear(32, 3)
        self.critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor_params = [*self.torso.parameters(), *self.pi.parameters()]
        self.pi_optimizer = torch.optim.Adam(self.actor_params, lr=3e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-3)
        self.max_norm = max_norm

    def critic_update(self, states, returns):
        loss = nn.functional.mse_loss(self.critic(states).squeeze(1), returns)
        self.critic_optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), self.max_norm)
        self.critic_optimizer.step()

    def pi_update(self, states, actions, advantage):
        logp = torch.log_softmax(self.pi(self.torso(states)), 1)
        loss = -(logp.gather(1, actions[:, None]).squeeze(1) * advantage).mean()
        self.pi_optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters=self.critic.parameters(), max_norm=self.max_norm)
        self.pi_optimizer.step()


agent = ActorCritic()
prize = torch.randn(8, 3)
for episode in range(20):
    states = torch.randn(40, 8)
    with torch.no_grad():
        probs = torch.softmax(agent.pi(agent.torso(states)), 1)
        actions = torch.multinomial(probs, 1).squeeze(1)
        returns = (states @ prize).gather(1, actions[:, None]).squeeze(1)
        advantage = returns - agent.critic(states).squeeze(1)
    agent.critic_update(states, returns)
    agent.pi_update(states, actions, advantage)
