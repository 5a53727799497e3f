"""Tell two modulations apart; signals are made on the fly by the loader's workers."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Synthetic(Dataset):
    def __init__(self, length=640):
        self.length = length
        self.rng = np.random.default_rng(7)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        kind = int(self.rng.integers(2))
        phase = self.rng.uniform(0, 6.28)
        t = np.arange(32) / 32
        signal = np.sin(2 * np.pi * (2 + 3 * kind) * t + phase)
        signal = signal + 0.3 * self.rng.standard_normal(32)
        return torch.tensor(signal, dtype=torch.float32), kind


loader = DataLoader(Synthetic(), batch_size=16, num_workers=2)
model = nn.Sequential(
    nn.Unflatten(1, (1, 32)),
    nn.Conv1d(1, 16, 7),
    nn.ReLU(),
    nn.AdaptiveMaxPool1d(1),
    nn.Flatten(),
    nn.Linear(16, 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for signals, kinds in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(signals), kinds)
    loss.backward()
    optimizer.step()
