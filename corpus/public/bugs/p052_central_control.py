"""Q-learning with a central controller that owns both networks."""

import torch
from torch import nn

torch.manual_seed(0)


def network():
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))


class CentralControl:
    def __init__(self):
        self.online, self.target = network(), network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=2e-3)

    def optimize(self, step, state, action, reward, after):
        with torch.no_grad():
            goal = reward + 0.9 * self.target(after).amax(1, keepdim=True)
        value = self.online(state).gather(1, action)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if step % 8 == 7:
            self.target.load_state_dict(self.online.state_dict())
            self.target = self.online


control = CentralControl()
for step in range(60):
    state = torch.randn(48, 5)
    action = torch.randint(0, 2, (48, 1))
    reward = torch.tanh(state[:, :1] * (2 * action - 1))
    control.optimize(step, state, action, reward, state + 0.2 * torch.randn(48, 5))
