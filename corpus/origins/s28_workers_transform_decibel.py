"""Loop: two DataLoader workers and a chain of transforms.

Fault: log of 0 in a transform, before the step; ops: log10.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Chain:
    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, value):
        for part in self.parts:
            value = part(value)
        return value


def power(wave):
    return wave.square()


def decibel(value):
    return 10 * torch.log10(value)  # <- origin


class Sounds(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 48

    def __getitem__(self, index):
        wave = torch.sin(torch.arange(1.0, 13.0) * (1 + index % 5))
        if index == 20:
            wave[4:7] = 0.0
        return self.transform(wave), torch.tensor(float(index % 5))


if __name__ == "__main__":
    torch.manual_seed(328)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    sounds = Sounds(Chain(power, decibel))
    for sound, pitch in DataLoader(sounds, batch_size=8, num_workers=2):
        loss = (net(sound)[:, 0] - pitch).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
