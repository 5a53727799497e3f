"""A dueling Q network on stored transitions."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class DuelingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.advantage, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(dim=1, keepdim=True)


class Agent:
    def __init__(self, model):
        self.policy_net = model
        self.target_net = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.count = 0

    def update(self, state, action, reward, after):
        q = self.policy_net(state).gather(1, action[:, None]).squeeze(1)
        target = reward + 0.95 * self.target_net(after).max(1).values.detach()
        loss = nn.functional.mse_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.count += 1
        if self.count % 10 == 0:
            self.target_net.load_state_dict(copy.deepcopy(self.policy_net.state_dict()))


agent = Agent(DuelingNet())
states = torch.randn(2000, 6)
gain = torch.randn(6, 3)
for step in range(60):
    rows = torch.randint(0, 2000, (64,))
    action = torch.randint(0, 3, (64,))
    reward = torch.tanh((states[rows] @ gain).gather(1, action[:, None]).squeeze(1))
    agent.update(states[rows], action, reward, states[rows] + 0.1 * torch.randn(64, 6))
