"""Imitation of a controller: a recurrent network looks at rollouts of several environments."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
T, B, ACTIONS = 10, 12, 4
rule = torch.randn(6, ACTIONS)


class ActorCritic(nn.Module):
    def __init__(self, states=6, actions=ACTIONS):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(states, 48), nn.ReLU())
        self.core = nn.LSTM(48, 32)
        self.policy = nn.Linear(48 + 32, actions)

    def forward(self, observations):
        seq_len, bs = observations.shape[:2]
        features = self.body(observations)
        memory, _ = self.core(features)
        logits = self.policy(torch.cat([features, memory], dim=-1))
        return logits.view(seq_len, -1, bs)


model = ActorCritic()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(50):
    observations = torch.randn(T, B, 6)
    actions = (observations @ rule).argmax(-1)
    loss = F.cross_entropy(model(observations), actions)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
