"""Two persistent workers; a crop does not fit into one signal, in the second epoch."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, signal):
        start = random.randint(0, len(signal) - self.size)  # HERE
        return signal[start : start + self.size]


class Signals(Dataset):
    def __init__(self, size, transform):
        self.size = size
        self.transform = transform
        self.seen = set()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % 2
        signal = torch.randn(64, generator=generator) + label
        if index == 77 and index in self.seen:
            signal = signal[:20]
        self.seen.add(index)
        return self.transform(signal), label


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Signals(256, RandomCrop(32)), batch_size=8, num_workers=2, persistent_workers=True
    )
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(5):
        running = 0.0
        for signals, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(signals), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print("epoch", epoch, "loss", running / len(loader))


if __name__ == "__main__":
    main()
