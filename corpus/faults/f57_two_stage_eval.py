"""Convolutional classifier with a validation pass after each epoch."""

import argparse
import random
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    epochs: int = 4
    batch_size: int = 32
    lr: float = 0.01
    widths: list = field(default_factory=lambda: [12, 24])


def build_model(widths, classes):
    layers, channels = [], 1
    for width in widths:
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width
    layers += [nn.Flatten(), nn.Dropout(0.3), nn.Linear(channels * 9, classes)]
    return nn.Sequential(*layers)


def make_glyphs(n, glyphs):
    labels = torch.randint(0, len(glyphs), (n,))
    return TensorDataset(glyphs[labels] + 2.5 * torch.randn(n, 1, 12, 12), labels)


@torch.no_grad()
def validate(model, loader, criterion):
    losses, hits, seen = 0.0, 0, 0
    for x, y in loader:
        logits = model(x)
        losses += criterion(logits, y).item() * len(y)
        hits += (logits.argmax(1) == y).sum().item()
        seen += len(y)
    return losses / seen, hits / seen


def train_one_epoch(model, loader, criterion, optimizer):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    cfg = Settings()
    glyphs = torch.randn(6, 1, 12, 12)
    train_loader = DataLoader(make_glyphs(640, glyphs), cfg.batch_size, shuffle=True)
    valid_loader = DataLoader(make_glyphs(160, glyphs), cfg.batch_size)
    model = build_model(cfg.widths, 6)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    for epoch in range(cfg.epochs):
        train_loss = train_one_epoch(model, train_loader, criterion, optimizer)
        valid_loss, accuracy = validate(model, valid_loader, criterion)
        print(f"{epoch}: train {train_loss:.4f} valid {valid_loss:.4f} acc {accuracy:.3f}")


if __name__ == "__main__":
    main()
