"""Group-relative policy optimisation of a small policy on two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))
model = DistributedDataParallel(policy)
unwrapped = model.module
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
prize = torch.randn(10, 4)
torch.manual_seed(1 + dist.get_rank())
for step in range(30):
    states = torch.randn(48, 10)
    scores = unwrapped(states)
    dist_ = torch.distributions.Categorical(logits=scores)
    actions = dist_.sample()
    reward = (states @ prize).gather(1, actions[:, None]).squeeze(1)
    advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
    loss = -(dist_.log_prob(actions) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
