"""A worker unpacks a volume whose header says 3 TB; numpy cannot allocate it."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self):
        self.headers = [(8, 8, 8)] * 240
        self.headers[133] = (90_000, 9_000, 1_000)

    def __len__(self):
        return len(self.headers)

    def __getitem__(self, number):
        volume = np.full(self.headers[number], number / 240, dtype=np.float32)  # HERE
        return torch.from_numpy(volume[:8, :8, :8].copy())


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(512, 4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for volume in DataLoader(Volumes(), batch_size=6, num_workers=2):
        loss = (net(volume) - volume.mean(dim=(1, 2, 3)).unsqueeze(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
