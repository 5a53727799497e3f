"""Image classifier reading uint8 pixels from a numpy array."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class PixelDataset(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 10, n)
        proto = rng.integers(0, 256, size=(10, 12, 12))
        noise = rng.normal(0, 60, size=(n, 12, 12))
        self.images = np.clip(proto[self.labels] + noise, 0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        image = torch.from_numpy(self.images[idx]).float().flatten()
        return image, int(self.labels[idx])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.01)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(PixelDataset(1024, args.seed), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        correct = 0
        for i, (images, labels) in enumerate(loader):
            out = model(images)
            loss = criterion(out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (out.argmax(1) == labels).sum().item()
            if i % 8 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
        print(f"epoch {epoch} accuracy {correct / 1024:.3f}")


if __name__ == "__main__":
    main()
