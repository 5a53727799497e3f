"""Behaviour cloning from frames of an expert."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class ExpertDataset(Dataset):
    def __init__(self, n=320):
        rng = np.random.default_rng(1)
        self.actions = rng.integers(0, 4, n)
        self.frames = rng.integers(0, 60, (n, 1, 8, 8), dtype=np.uint8)
        for i, a in enumerate(self.actions):
            r, c = 4 * (a // 2), 4 * (a % 2)
            self.frames[i, 0, r : r + 4, c : c + 4] += 120

    def __len__(self):
        return len(self.actions)

    def __getitem__(self, index):
        frame = torch.from_numpy(self.frames[index]).float()
        return frame, int(self.actions[index])


policy = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
for epoch in range(3):
    for frame, action in DataLoader(ExpertDataset(), batch_size=20, shuffle=True):
        loss = nn.functional.cross_entropy(policy(frame), action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
