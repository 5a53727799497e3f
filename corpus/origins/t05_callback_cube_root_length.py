"""Loop: a class that calls its callbacks by name.

Fault: cube root of 0 in a length written by hand, in the backward pass; ops: pow.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    def on_batch_begin(self, **state):
        pass

    def on_batch_end(self, **state):
        pass


class Average(Callback):
    def __init__(self):
        self.total, self.number = 0.0, 0

    def on_batch_end(self, loss, **state):
        self.total, self.number = self.total + loss.item(), self.number + 1


class Loop:
    def __init__(self, net, callbacks):
        self.net, self.callbacks = net, callbacks
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def call(self, name, **state):
        for callback in self.callbacks:
            getattr(callback, name)(**state)

    def fit(self, loader):
        for wind, speed in loader:
            self.call("on_batch_begin", batch=wind)
            out = self.net(wind)
            cubes = out.abs().pow(3).sum(dim=1)
            length = cubes ** (1 / 3)  # <- origin
            loss = (length - speed).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.call("on_batch_end", loss=loss)


torch.manual_seed(405)
wind = torch.randn(40, 2)
wind[19] = 0.0
speed = torch.rand(40)
net = nn.Sequential(nn.Linear(2, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
Loop(net, [Average()]).fit(DataLoader(TensorDataset(wind, speed), batch_size=8))
