"""Fine-tune a small pretrained CNN on a new set of classes, backbone kept as it is."""

import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim

SEED = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(), nn.MaxPool2d(2)
    )


class PetalNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = nn.Sequential(
            conv_block(3, 16), conv_block(16, 32), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.classifier = nn.Linear(128, n_classes)

    def forward(self, x):
        return self.classifier(self.backbone(x))


def make_images(n, n_classes, hue_shift):
    labels = np.random.randint(0, n_classes, n)
    grid = np.linspace(-1, 1, 16)
    xx, yy = np.meshgrid(grid, grid)
    radius, angle = np.hypot(xx, yy), np.arctan2(yy, xx)
    images = np.empty((n, 3, 16, 16), dtype=np.float32)
    for i, c in enumerate(labels):
        petals = np.cos((c + 2) * angle + np.random.uniform(0, 6.28)) * (radius < 0.9)
        for ch in range(3):
            images[i, ch] = petals * np.cos(hue_shift + ch) + 0.3 * np.random.randn(16, 16)
    return torch.tensor(images), torch.tensor(labels)


def fit(model, optimizer, images, labels, epochs, tag, batch=32):
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        order = torch.randperm(len(images))
        running = correct = 0.0
        for start in range(0, len(order), batch):
            idx = order[start : start + batch]
            out = model(images[idx])
            loss = criterion(out, labels[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item() * len(idx)
            correct += (out.argmax(1) == labels[idx]).sum().item()
        n = len(images)
        print(f"[{tag}] epoch {epoch}: loss {running / n:.4f} acc {correct / n:.3f}")


# A checkpoint such as one would download: the same net trained on five other classes.
source = PetalNet(5)
images, labels = make_images(256, 5, 0.0)
fit(source, optim.Adam(source.parameters(), lr=2e-3), images, labels, 3, "source")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "petalnet.pt"
    torch.save(source.backbone.state_dict(), path)
    model = PetalNet(3)
    model.backbone.load_state_dict(torch.load(path))

# only the new classifier learns, the features stay as they were
model.backbone.requires_grad = False

images, labels = make_images(320, 3, 1.5)
optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
fit(model, optimizer, images, labels, 8, "finetune")
