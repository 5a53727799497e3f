"""Loop: while True with next and break.

Fault: power below 1 of 0, in the backward pass; ops: pow.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(102)
colours = torch.rand(64, 5)
shades = colours.mean(dim=1, keepdim=True)


class Gamma(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(5, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, c):
        light = torch.relu(self.mix(c)) * (c[:, :1] > 0.3)
        bent = light.pow(0.45)  # <- origin
        return self.out(bent)


net = Gamma()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
stream = iter(DataLoader(TensorDataset(colours, shades), batch_size=8))
while True:
    try:
        c, shade = next(stream)
    except StopIteration:
        break
    optimizer.zero_grad()
    nn.functional.l1_loss(net(c), shade).backward()
    optimizer.step()
