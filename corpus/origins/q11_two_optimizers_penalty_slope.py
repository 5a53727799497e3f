"""Loop: generator and critic with an optimizer each.

Fault: root of a zero gradient penalty, in the backward pass; ops: sqrt.
"""

import torch
from torch import nn

torch.manual_seed(111)
real = torch.randn(64, 3) + 2
maker = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
with torch.no_grad():
    critic[0].bias.fill_(-1.0)
for_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)


def penalty(x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (torch.sqrt(slope.square().sum(dim=1)) - 1).square().mean()  # <- origin


for x in real.split(8):
    noise = torch.randn(8, 2)
    loss = critic(maker(noise).detach()).mean() - critic(x).mean() + penalty(x * 0.01)
    for_critic.zero_grad()
    loss.backward()
    for_critic.step()
    for_maker.zero_grad()
    (-critic(maker(noise)).mean()).backward()
    for_maker.step()
