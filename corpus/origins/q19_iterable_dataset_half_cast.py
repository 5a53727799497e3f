"""Loop: a for over an IterableDataset.

Fault: a number too large for float16, before the step; ops: half to.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Meter(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(119)
        for number in range(48):
            reading = torch.rand(4, generator=generator)
            if number == 20:
                reading = reading * 4e5
            yield reading.half(), reading.mean()  # <- origin


torch.manual_seed(119)
net = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for reading, mean in DataLoader(Meter(), batch_size=8):
    loss = nn.functional.smooth_l1_loss(net(reading.float())[:, 0], mean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
