"""Loop: a hook of the optimizer after each step.

Fault: a weight is standardised, 0 / 0, between two steps; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(324)
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
with torch.no_grad():
    net[2].weight.fill_(0.3)
    net[0].weight.copy_(net[0].weight[:1].expand(6, 4))
    net[0].bias.fill_(0.1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
taken = 0


def standardise(optimizer, args, kwargs):
    global taken
    taken += 1
    if taken == 2:
        with torch.no_grad():
            w = net[2].weight
            w.sub_(w.mean())
            w.div_(w.std())  # <- origin


optimizer.register_step_post_hook(standardise)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
for x, y in DataLoader(data, batch_size=8):
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
