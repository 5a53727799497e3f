"""Which way does the arrow point? A conv net with on-the-fly augmentation."""

import random
import sys

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SEED = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)


class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, img):
        for s in self.steps:
            img = s(img)
        return img


def random_rot90(img):
    return torch.rot90(img, random.randrange(4), dims=(1, 2))


def random_shift(img, most=2):
    return torch.roll(img, (random.randint(-most, most), random.randint(-most, most)), (1, 2))


def random_contrast(img):
    return img * random.uniform(0.8, 1.2)


def arrow(direction):
    img = np.zeros((17, 17), dtype=np.float32)
    img[8, 3:14] = 1
    for k in range(4):
        img[8 - k, 13 - k] = img[8 + k, 13 - k] = 1
    return np.rot90(img, direction).copy()


class Arrows(Dataset):
    def __init__(self, n, transform=None):
        self.labels = np.random.randint(0, 4, n)
        self.noise = 0.2 * np.random.randn(n, 17, 17).astype(np.float32)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = torch.from_numpy(arrow(self.labels[i]) + self.noise[i]).unsqueeze(0)
        if self.transform:
            img = self.transform(img)
        return img, self.labels[i]


augment = Compose(random_rot90, random_shift, random_contrast)
train = DataLoader(Arrows(640, augment), batch_size=32, shuffle=True)
test = DataLoader(Arrows(160), batch_size=160)

net = nn.Sequential(
    nn.Conv2d(1, 8, 5, stride=2),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 25, 32),
    nn.ReLU(),
    nn.Linear(32, 4),
)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(10):
    total = 0
    for images, labels in train:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    images, labels = next(iter(test))
    with torch.no_grad():
        acc = (net(images).argmax(1) == labels).float().mean().item()
    print(f"epoch {epoch}: loss {total / len(train):.4f}, test accuracy {acc:.3f}")
