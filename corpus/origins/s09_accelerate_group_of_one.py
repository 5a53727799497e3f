"""Loop: accelerate.

Fault: standard deviation of one element, in the forward pass; ops: std.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(309)
samples = torch.randn(48, 6)
groups = torch.arange(48) % 2
groups[16:24] = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0])


def spread(values, group):
    total = values.new_zeros(())
    for one in group.unique():
        total = total + values[group == one].std()  # <- origin
    return total


accelerator = Accelerator(cpu=True)
net = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(samples, groups), batch_size=8)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for _ in range(2):
    for x, group in loader:
        with accelerator.accumulate(net):
            values = net(x).squeeze(1)
            loss = (values - x[:, 0]).square().mean() + 0.1 * spread(values, group)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
