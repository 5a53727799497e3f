"""Classify rendered scenes; each scene is rendered on first use and kept in memory."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 40


class CachedScenes(Dataset):
    def __init__(self, n):
        self.seeds = np.random.randint(0, 2**31, n)
        self.labels = np.random.randint(0, 3, n)
        self.cache = {}

    def render(self, i):
        rng = np.random.default_rng(self.seeds[i])
        yy, xx = np.mgrid[0:SIZE, 0:SIZE]
        cx, cy = rng.uniform(12, SIZE - 12, 2)
        dx, dy = np.abs(xx - cx), np.abs(yy - cy)
        shapes = (np.maximum(dx, dy) < 6, (dx < 2) & (dy < 11), (dx < 11) & (dy < 2))
        scene = shapes[self.labels[i]] * 1.5 - 0.3
        return np.stack([scene + 1.1 * rng.standard_normal((SIZE, SIZE)) for _ in range(3)])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = torch.tensor(self.render(i), dtype=torch.float32)
        return self.cache[i], int(self.labels[i])


class SceneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 12, 5, stride=2, padding=2)
        self.c2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(24, 32, 3, stride=2, padding=1)
        self.fc = nn.Linear(32 * 25, 3)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        x = F.relu(self.c3(x))
        return self.fc(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    scenes = CachedScenes(1600)
    loader = DataLoader(scenes, batch_size=32, shuffle=True)
    model = SceneNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} cached {len(scenes.cache)}")


if __name__ == "__main__":
    main()
