"""Segmentation with masks that come as grey pictures."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Masks(Dataset):
    def __init__(self, n=160):
        rng = np.random.default_rng(0)
        self.images = rng.normal(size=(n, 1, 10, 10)).astype(np.float32)
        self.masks = np.where(self.images[:, 0] > 0, 255, 0).astype(np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        mask = torch.from_numpy(self.masks[index].astype(np.int64))
        return torch.from_numpy(self.images[index]), mask


net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(4):
    for image, mask in DataLoader(Masks(), batch_size=16, shuffle=True):
        loss = criterion(net(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
