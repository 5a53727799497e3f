"""Classify 8-bit image patches with a multilayer perceptron."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    """Bright strokes on a dark, noisy ground, stored as bytes like most image sets."""

    def __init__(self, n, prototypes):
        self.labels = np.random.randint(0, len(prototypes), n)
        clean = prototypes[self.labels] * 110 + 90
        noisy = clean + 45 * np.random.randn(*clean.shape)
        self.images = noisy.clip(0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]).float(), int(self.labels[i])


class PatchNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.flatten = nn.Flatten()
        self.net = nn.Sequential(
            nn.Linear(144, 64),
            nn.Tanh(),
            nn.Linear(64, 64),
            nn.Tanh(),
            nn.Linear(64, classes),
        )

    def forward(self, x):
        return self.net(self.flatten(x))


def accuracy(model, loader):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for images, labels in loader:
            hits += (model(images).argmax(1) == labels).sum().item()
            total += len(labels)
    model.train()
    return hits / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    prototypes = (np.random.rand(10, 12, 12) < 0.3).astype(np.float32)
    train_loader = DataLoader(Patches(1280, prototypes), batch_size=32, shuffle=True)
    test_loader = DataLoader(Patches(320, prototypes), batch_size=160)
    model = PatchNet(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        running = 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item() / len(train_loader)
        print(
            f"epoch {epoch}: loss {running:.4f}, test accuracy {accuracy(model, test_loader):.3f}"
        )


if __name__ == "__main__":
    main()
