"""Forecast of the sales of shops from their last two weeks."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(0)


def read_sales(shops=8, days=120):
    level = rng.uniform(0.5, 2.0, (shops, 1))
    week = np.sin(np.arange(days) * 2 * np.pi / 7)
    y = level + 0.3 * week + 0.1 * rng.standard_normal((shops, days))
    y[3, 70:74] = np.nan  # closed
    return y.astype(np.float32)


class Windows(Dataset):
    def __init__(self, y, length=14):
        self.y, self.length = y, length
        self.per_shop = y.shape[1] - length

    def __len__(self):
        return len(self.y) * self.per_shop

    def __getitem__(self, index):
        shop, day = divmod(index, self.per_shop)
        window = self.y[shop, day : day + self.length + 1]
        return torch.from_numpy(window[:-1]), torch.tensor(window[-1])


torch.manual_seed(0)
sales = read_sales()
loader = DataLoader(Windows(sales), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(14, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for x, y in loader:
    loss = nn.functional.l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
