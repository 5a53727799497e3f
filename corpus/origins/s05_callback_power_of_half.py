"""Loop: callbacks before and after each batch.

Fault: power of 0 with an exponent below 1, in the backward pass; ops: pow.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(305)


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Conv1d(1, 4, 5, bias=False)
        self.head = nn.Linear(4, 1)

    def forward(self, wave):
        bands = self.filters(wave).abs().mean(dim=-1)
        return self.head(bands**0.5)  # <- origin


class Meter:
    def __init__(self):
        self.values = []

    def after(self, loss):
        self.values.append(loss.item())


class Zero:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def before(self):
        self.optimizer.zero_grad()


model = Spectrum()
waves = torch.randn(40, 1, 30)
waves[17] = 0.0
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
meter, zero = Meter(), Zero(optimizer)
for wave, level in DataLoader(TensorDataset(waves, torch.rand(40, 1)), batch_size=8):
    zero.before()
    loss = nn.functional.l1_loss(model(wave), level)
    loss.backward()
    optimizer.step()
    meter.after(loss)
