"""Loop: objects called in turn.

Fault: eigenvectors of equal eigenvalues, in the backward pass; ops: eigh linalg_eigh.
"""

import torch
from torch import nn


class Axes(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, cloud):
        spread = torch.diag_embed(self.gain * cloud.square().mean(dim=1))
        _, vectors = torch.linalg.eigh(spread)  # <- origin
        return vectors.abs()


class Step:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def __call__(self, cloud):
        self.optimizer.zero_grad()
        (self.net(cloud) * torch.arange(16.0).view(4, 4)).mean().backward()
        self.optimizer.step()


class Epoch:
    def __init__(self, step, data):
        self.step, self.data = step, data

    def __call__(self):
        any(self.step(cloud) for cloud in self.data)


torch.manual_seed(123)
clouds = torch.randn(40, 10, 4)
clouds[16:24] = 1.0
Epoch(Step(Axes()), clouds.split(8))()
