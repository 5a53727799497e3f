"""Loop: a compiled model (backend eager).

Fault: log of a negative number, in the forward pass; ops: log.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(317)


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.rate = nn.Linear(8, 1)

    def forward(self, x):
        rate = self.rate(self.body(x).tanh()) + 2.5
        return rate, torch.log(rate)  # <- origin


model = Count()
with torch.no_grad():
    model.rate.weight.fill_(0.4)
    model.body.weight.fill_(0.05)
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(48, 5)
inputs[27] = -300.0
counts = torch.poisson(torch.full((48, 1), 2.0))
for x, y in DataLoader(TensorDataset(inputs, counts), batch_size=8):
    rate, log_rate = compiled(x)
    loss = (rate - y * log_rate).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
