"""Grayscale CNN with a transform pipeline."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class ToTensor:
    def __call__(self, img):
        return torch.from_numpy(img).unsqueeze(0).float() / 255.0


class Compose:
    def __init__(self, ts):
        self.ts = ts

    def __call__(self, x):
        for t in self.ts:
            x = t(x)
        return x


class Gray(Dataset):
    def __init__(self, n, seed, transform):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 6, n)
        proto = rng.integers(40, 216, size=(6, 14, 14))
        imgs = proto[self.y] + rng.normal(0, 25, size=(n, 14, 14))
        self.x = np.clip(imgs, 0, 255).astype(np.uint8)
        self.transform = transform

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.transform(self.x[i]), int(self.y[i])


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc = nn.Linear(16 * 2 * 2, 6)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    transform = Compose([ToTensor(), lambda t: t / 255.0])
    loader = DataLoader(Gray(768, args.seed, transform), batch_size=32, shuffle=True)
    model = CNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(4):
        losses = []
        for img, label in loader:
            loss = F.cross_entropy(model(img), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()
