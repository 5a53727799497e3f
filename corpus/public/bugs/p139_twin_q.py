"""Soft actor-critic with two Q-networks, from a small factory of networks."""

import torch
from torch import nn

torch.manual_seed(0)


def make_q(state_dim=5, action_dim=2):
    return nn.Sequential(nn.Linear(state_dim + action_dim, 64), nn.ReLU(), nn.Linear(64, 1))


class SAC:
    def __init__(self):
        self.q1, self.q2 = make_q(), make_q()
        self.q1_target, self.q2_target = make_q(), make_q()
        for net in (self.q2, self.q1_target, self.q2_target):
            net.load_state_dict(self.q1.state_dict())
        self.policy = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
        parameters = [*self.q1.parameters(), *self.q2.parameters()]
        self.q_optimizer = torch.optim.Adam(parameters, lr=1e-3)
        self.pi_optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)

    def act(self, s):
        return torch.tanh(self.policy(s) + 0.1 * torch.randn(len(s), 2))

    def update(self, s, a, r, s2):
        with torch.no_grad():
            joint = torch.cat([s2, self.act(s2)], 1)
            y = r + 0.9 * torch.min(self.q1_target(joint), self.q2_target(joint))
        joint = torch.cat([s, a], 1)
        q_loss = nn.functional.mse_loss(self.q1(joint), y)
        q_loss = q_loss + nn.functional.mse_loss(self.q2(joint), y)
        self.q_optimizer.zero_grad()
        q_loss.backward()
        self.q_optimizer.step()
        joint = torch.cat([s, self.act(s)], 1)
        pi_loss = -torch.min(self.q1(joint), self.q2(joint)).mean()
        self.pi_optimizer.zero_grad()
        pi_loss.backward()
        self.pi_optimizer.step()
        with torch.no_grad():
            for net, slow in ((self.q1, self.q1_target), (self.q2, self.q2_target)):
                for p, tp in zip(net.parameters(), slow.parameters()):
                    tp.lerp_(p, 0.02)


agent = SAC()
for step in range(25):
    s = torch.randn(64, 5)
    a = torch.tanh(torch.randn(64, 2))
    r = (a * s[:, :2]).sum(1, keepdim=True) - 0.1 * s[:, 2:3]
    agent.update(s, a, r, 0.7 * s + 0.1 * torch.randn(64, 5))
