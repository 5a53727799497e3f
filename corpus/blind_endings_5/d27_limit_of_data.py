"""A replay buffer grows without an end under RLIMIT_DATA, as in a job with little memory."""

import collections
import resource

import torch
from torch import nn


class Replay:
    def __init__(self):
        self.episodes = collections.deque()

    def add(self, states):
        self.episodes.append(states.repeat(400, 25))  # HERE

    def batch(self, size):
        return self.episodes[-1][:size, :8]


torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
replay = Replay()
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1])
resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + 700_000_000,) * 2)
for _ in range(5000):
    replay.add(torch.randn(40, 8))
    states = replay.batch(32)
    loss = nn.functional.mse_loss(critic(states), states.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
