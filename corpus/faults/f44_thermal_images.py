"""Hot-spot classification on 8-bit thermal images."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ThermalSet(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 4, n)
        frames = rng.normal(110, 18, (n, 16, 16))
        for i, c in enumerate(self.labels):
            r, q = (c // 2) * 8 + rng.integers(1, 4), (c % 2) * 8 + rng.integers(1, 4)
            frames[i, r : r + 4, q : q + 4] += 90
        self.frames = frames.clip(0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        frame = torch.from_numpy(self.frames[i]).float().div(255.0)
        return frame.unsqueeze(0), int(self.labels[i])


def collate(samples):
    frames, labels = zip(*samples, strict=True)
    batch = torch.stack(frames) / 255.0
    return batch - batch.mean(), torch.tensor(labels)


class HotSpotNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(16 * 16, 4)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def run(args):
    torch.manual_seed(args.seed)
    train = DataLoader(ThermalSet(600, args.seed), args.batch, shuffle=True, collate_fn=collate)
    val = DataLoader(ThermalSet(200, args.seed + 1), 100, collate_fn=collate)
    net = HotSpotNet()
    sgd = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    ce = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        net.train()
        losses = []
        for x, y in train:
            sgd.zero_grad()
            loss = ce(net(x), y)
            loss.backward()
            sgd.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            acc = np.mean([(net(x).argmax(1) == y).float().mean().item() for x, y in val])
        print(f"epoch {epoch + 1:02d}  loss {np.mean(losses):.4f}  val acc {acc:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=8)
    run(parser.parse_known_args()[0])
