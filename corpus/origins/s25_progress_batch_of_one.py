"""Loop: a loader inside a progress bar of the user's own.

Fault: the variance over a last batch of one sample, in the forward pass; ops: var.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BatchScale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        spread = x.var(dim=0)  # <- origin
        return self.weight * (x - x.mean(dim=0)) / (spread + 1e-5).sqrt()


class Progress:
    def __init__(self, items):
        self.items, self.done = items, 0

    def __iter__(self):
        for item in self.items:
            yield item
            self.done += 1


torch.manual_seed(325)
net = nn.Sequential(nn.Linear(5, 8), BatchScale(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(25, 5), torch.randn(25, 1))
for _ in range(2):
    for x, y in Progress(DataLoader(data, batch_size=6)):
        loss = nn.functional.smooth_l1_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
