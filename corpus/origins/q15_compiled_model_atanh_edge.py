"""Loop: a compiled model in a for over a loader.

Fault: atanh at 1, in the forward pass; ops: atanh.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(115)
angles = torch.randn(40, 6)
angles[18] = 60.0


class Squash(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)

    def forward(self, a):
        action = torch.tanh(self.body(a))
        raw = torch.atanh(action)  # <- origin
        return raw.square().mean()


model = torch.compile(Squash(), backend="eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for (a,) in DataLoader(TensorDataset(angles), batch_size=8):
    loss = model(a)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
