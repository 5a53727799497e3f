"""The ssh session ends, and with it the job: SIGHUP."""

import time

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
first = torch.optim.Adam(generator.parameters(), lr=1e-4)
second = torch.optim.Adam(critic.parameters(), lr=1e-4)
for step in range(4000):
    noise, real = torch.randn(16, 4), torch.randn(16, 8) + 1
    second.zero_grad()
    judged = critic(generator(noise).detach()), critic(real)
    (nn.functional.softplus(judged[0]) + nn.functional.softplus(-judged[1])).mean().backward()
    second.step()
    first.zero_grad()
    nn.functional.softplus(-critic(generator(noise))).mean().backward()
    first.step()
    time.sleep(0.01)
    if step == 100:
        print("signal me", flush=True)
