"""Patches of volumes with random contrast and noise, made by transforms with a seed."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomContrast:
    def __init__(self, random_state):
        self.random_state = random_state

    def __call__(self, m):
        return m * self.random_state.uniform(0.5, 1.5)


class AdditiveNoise:
    def __init__(self, random_state):
        self.random_state = random_state

    def __call__(self, m):
        return m + self.random_state.normal(0, 0.3, size=m.shape)


class Volumes(Dataset):
    def __init__(self, count=96):
        generator = np.random.RandomState(0)
        self.raw = generator.randn(count, 6, 6, 6)
        self.label = (self.raw[:, 2:4, 2:4, 2:4].mean((1, 2, 3)) > 0).astype("int64")
        state = np.random.RandomState(47)
        self.transforms = [RandomContrast(state), AdditiveNoise(state)]

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, index):
        m = self.raw[index]
        for transform in self.transforms:
            m = transform(m)
        return torch.from_numpy(m).float(), int(self.label[index])


def main():
    torch.manual_seed(0)
    loader = DataLoader(Volumes(), batch_size=12, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(216, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for volumes, labels in loader:
            loss = nn.functional.cross_entropy(model(volumes), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
