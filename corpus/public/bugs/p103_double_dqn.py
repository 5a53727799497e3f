"""Double deep Q-learning on a walk with a goal, with a replay buffer."""

import random
from collections import deque

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)


class QNet(nn.Module):
    def __init__(self, states=6, actions=3, hidden=48):
        super().__init__()
        self.fc1 = nn.Linear(states, hidden)
        self.fc2 = nn.Linear(hidden, actions)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Agent:
    def __init__(self, gamma=0.9, lr=1e-3):
        self.policy_net = QNet()
        self.target_net = QNet()
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=lr)
        self.memory = deque(maxlen=2000)
        self.gamma = gamma
        self.updates = 0

    def act(self, state):
        if random.random() < 0.3:
            return random.randrange(3)
        with torch.no_grad():
            return int(self.policy_net(state).argmax())

    def update(self, batch_size=32):
        rows = random.sample(self.memory, batch_size)
        s, a, r, s2, done = (torch.stack(part) for part in zip(*rows))
        q = self.policy_net(s).gather(1, a[:, None]).squeeze(1)
        best = self.policy_net(s2).max(dim=1).values
        expected = r + self.gamma * best * (1 - done)
        loss = nn.functional.mse_loss(q, expected)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % 10 == 0:
            self.target_net.load_state_dict(self.policy_net.state_dict())


def step(state, action):
    move = torch.zeros(6)
    move[action] = 0.4 if action else -0.4
    new = (state + move + 0.1 * torch.randn(6)).clamp(-2, 2)
    done = float(new[0] > 1.5)
    return new, float(new[0] - 0.2 * new[1].abs()), done


agent = Agent()
state = torch.randn(6) * 0.3
for t in range(220):
    action = agent.act(state)
    new, reward, done = step(state, action)
    agent.memory.append(
        (state, torch.tensor(action), torch.tensor(reward), new, torch.tensor(done))
    )
    state = torch.randn(6) * 0.3 if done else new
    if t >= 120:
        agent.update()
