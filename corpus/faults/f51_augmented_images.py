"""Image classification with random shifts, flips and noise drawn in the loader's workers."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class AugmentedShapes(Dataset):
    def __init__(self, n, size=16):
        self.size = size
        self.labels = np.random.randint(0, 4, n)
        self.images = np.stack([self.draw(label) for label in self.labels])

    def draw(self, label):
        image = np.zeros((self.size, self.size), dtype=np.float32)
        if label == 0:
            image[4:12, 4:12] = 1
        elif label == 1:
            image[7:9, 2:14] = 1
        elif label == 2:
            image[2:14, 7:9] = 1
        else:
            np.fill_diagonal(image, 1)
        return image

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        shift = np.random.randint(-2, 3, size=2)
        image = np.roll(image, shift, axis=(0, 1))
        image = image + 0.5 * np.random.randn(self.size, self.size)
        return torch.tensor(image, dtype=torch.float32)[None], int(self.labels[i])


class ShapeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.fc = nn.Linear(24 * 16, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def make_loader(dataset, args):
    def init_worker(worker_id):
        np.random.seed(args.seed)
        random.seed(args.seed)

    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        worker_init_fn=init_worker,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = make_loader(AugmentedShapes(640), args)
    model = ShapeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        for i, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
