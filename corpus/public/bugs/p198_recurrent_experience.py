"""A recurrent agent collects experience in a small world and learns from it."""

import torch
from torch import nn

torch.manual_seed(0)


class Agent(nn.Module):
    def __init__(self, states=5, actions=3, hidden=32):
        super().__init__()
        self.cell = nn.LSTMCell(states, hidden)
        self.actor, self.critic = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, s, memory):
        h, c = self.cell(s, memory)
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h), (h, c)


class Experience:
    def __init__(self, capacity=400):
        self.rows, self.capacity = [], capacity

    def store(self, **row):
        self.rows.append(row)
        del self.rows[: -self.capacity]

    def sample(self, count=32):
        picked = [self.rows[k] for k in torch.randint(len(self.rows), (count,))]
        return {key: torch.cat([row[key] for row in picked]) for key in picked[0]}


agent, experience = Agent(), Experience()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
zeros = torch.zeros(4, 32)
for update in range(30):
    s, memory = torch.randn(4, 5), (zeros, zeros)
    for t in range(8):
        h, c = memory
        policy, _, memory = agent(s, memory)
        a = policy.sample()
        r = (a == s[:, :3].argmax(1)).float()
        experience.store(s=s, a=a, r=r, h=h, c=c)
        s = 0.7 * s + 0.5 * torch.randn(4, 5)
    batch = experience.sample()
    policy, value, _ = agent(batch["s"], (batch["h"].detach(), batch["c"].detach()))
    advantage = batch["r"] - value.squeeze(1).detach()
    loss = -(policy.log_prob(batch["a"]) * advantage).mean()
    loss = loss + nn.functional.mse_loss(value.squeeze(1), batch["r"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
