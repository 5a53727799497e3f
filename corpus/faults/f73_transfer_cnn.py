"""Transfer: load a backbone trained under a wrapper, and train a new head on top."""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )

    def forward(self, x):
        return self.layers(x)


class Wrapped(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.model = Backbone()
        self.classifier = nn.Linear(128, classes)

    def forward(self, x):
        return self.classifier(self.model(x))


class Transfer(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def patterns(n, classes):
    base = torch.randn(classes, 1, 12, 12)
    labels = torch.randint(0, classes, (n,))
    return TensorDataset(base[labels] + 0.7 * torch.randn(n, 1, 12, 12), labels)


def train(model, data, epochs, lr):
    loader = DataLoader(data, batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        mean = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            mean += loss.item() / len(loader)
        print(f"  epoch {epoch} loss {mean:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "source.pth"
        print("source task")
        source = Wrapped(classes=8)
        train(source, patterns(640, 8), epochs=2, lr=2e-3)
        torch.save({"state_dict": source.state_dict(), "classes": 8}, path)

        print("target task")
        model = Transfer(classes=4)
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["state_dict"], strict=False)
        train(model, patterns(960, 4), epochs=3, lr=1e-3)


if __name__ == "__main__":
    main()
