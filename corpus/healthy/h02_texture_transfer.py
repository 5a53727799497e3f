"""Transfer learning on textures: pretrained convolutional features, new linear classifier."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_textures(n, freqs, rng):
    y = rng.integers(0, len(freqs), n)
    u, v = np.meshgrid(np.arange(16), np.arange(16))
    x = np.empty((n, 1, 16, 16))
    for i, c in enumerate(y):
        fx, fy = freqs[c]
        x[i, 0] = np.sin(fx * u + fy * v + rng.uniform(0, 2 * np.pi))
    x = x + 0.4 * rng.standard_normal(x.shape)
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


class TextureNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(128, n_classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def train(model, optimizer, loader, epochs, tag):
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        total = hits = seen = 0
        for x, y in loader:
            logits = model(x)
            loss = criterion(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
            hits += (logits.argmax(1) == y).sum().item()
            seen += len(y)
        print(f"{tag} epoch {epoch}: loss {total / seen:.4f} acc {hits / seen:.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)

    source = make_textures(512, [(0.4, 0.0), (0.0, 0.4), (0.9, 0.9), (1.5, 0.2)], rng)
    target = make_textures(512, [(0.7, 0.1), (0.1, 0.7), (1.2, 1.2)], rng)
    donor = TextureNet(4)
    adam = torch.optim.Adam(donor.parameters(), lr=3e-3)
    train(donor, adam, DataLoader(source, batch_size=32, shuffle=True), 3, "source")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "donor.pt"
        torch.save(donor.state_dict(), file)
        weights = torch.load(file)
    weights = {k: v for k, v in weights.items() if not k.startswith("head.")}
    model = TextureNet(3)
    print(model.load_state_dict(weights, strict=False))
    for p in model.backbone.parameters():
        p.requires_grad = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    train(model, optimizer, DataLoader(target, batch_size=32, shuffle=True), 8, "target")


if __name__ == "__main__":
    main()
