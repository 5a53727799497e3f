"""Fine-tune a batch-norm net on small batches, keeping the pretrained statistics."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Args:
    seed: int = 0
    pre_steps: int = 60
    steps: int = 150
    batch: int = 4
    lr: float = 1e-3


class ResBlock(nn.Module):
    def __init__(self, ch: int):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(ch)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(h)))


class BlobNet(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.blocks = nn.Sequential(ResBlock(16), ResBlock(16))
        self.fc = nn.Linear(16, classes)
        self.freeze_bn = False

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))

    def train(self, mode: bool = True):
        super().train(mode)
        if self.freeze_bn:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self


def blobs(n, classes, rng, sign):
    y = rng.integers(0, classes, n)
    u, v = np.meshgrid(np.arange(16) - 7.5, np.arange(16) - 7.5)
    x = 0.5 * rng.standard_normal((n, 1, 16, 16))
    for i, c in enumerate(y):
        width = 1.5 + 1.5 * c
        x[i, 0] += sign * 2 * np.exp(-(u**2 + v**2) / (2 * width**2))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def loop(net, x, y, steps, batch, lr, tag):
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=lr)
    ce = nn.CrossEntropyLoss()
    net.train()
    seen = []
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(x), (batch,))
        loss = ce(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen.append(loss.item())
        if step % 30 == 0:
            net.eval()
            with torch.no_grad():
                acc = (net(x).argmax(1) == y).float().mean().item()
            net.train()
            print(f"{tag} {step:3d} loss {np.mean(seen[-30:]):.4f} acc {acc:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=Args.seed)
    args = Args(seed=parser.parse_known_args()[0].seed)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    net = BlobNet(4)
    loop(net, *blobs(400, 4, rng, 1.0), args.pre_steps, 32, 3e-3, "pretrain")
    net.fc = nn.Linear(16, 3)
    net.freeze_bn = True
    loop(net, *blobs(200, 3, rng, 1.3), args.steps, args.batch, args.lr, "finetune")


if __name__ == "__main__":
    main()
