"""The first batch waits fifteen seconds for a worker that fills its cache; everything after is
quick."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __init__(self):
        self.rows = None

    def __len__(self):
        return 1200

    def __getitem__(self, number):
        if self.rows is None:
            time.sleep(15)
            self.rows = torch.linspace(-1, 1, 1200)
        value = self.rows[number]
        return torch.stack([value, value.cos()]), value.sin()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in DataLoader(Cached(), batch_size=12, num_workers=1, shuffle=True):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
