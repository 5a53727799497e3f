from __future__ import annotations

import itertools
import random
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    seed: int = 0
    classes: int = 6
    size: int = 20
    batch_size: int = 50
    n_train: int = 1000
    epochs: int = 6
    lr: float = 1.0
    momentum: float = 0.9


def parse(argv: list[str]) -> Config:
    cfg = Config()
    for key, value in itertools.pairwise(argv):
        name = key.lstrip("-").replace("-", "_")
        if key.startswith("--") and hasattr(cfg, name):
            setattr(cfg, name, type(getattr(cfg, name))(value))
    return cfg


def draw(cfg: Config, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy rings, bars, crosses... one shape per class."""
    y = np.random.randint(0, cfg.classes, size=n)
    ax = np.arange(cfg.size) - cfg.size / 2 + 0.5
    images = []
    for c in y:
        dx, dy = np.random.uniform(-2, 2, 2)
        u, v = np.meshgrid(ax - dx, ax - dy)
        r = np.hypot(u, v)
        shape = [r < 5, (r > 4) & (r < 7), abs(u) < 2, abs(v) < 2, abs(u - v) < 2, abs(u + v) < 2]
        images.append(shape[c] + 0.4 * np.random.randn(cfg.size, cfg.size))
    x = torch.tensor(np.stack(images), dtype=torch.float32).unsqueeze(1)
    return (x - x.mean()) / x.std(), torch.tensor(y)


class ShapeNet(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 5, stride=2, padding=2)
        self.bn1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(24)
        self.fc1 = nn.Linear(24 * 25, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def main() -> None:
    cfg = parse(sys.argv[1:])
    random.seed(cfg.seed)
    np.random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    x, y = draw(cfg, cfg.n_train)
    xv, yv = draw(cfg, 200)
    net = ShapeNet(cfg.classes)
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    for epoch in range(cfg.epochs):
        losses = []
        for ids in torch.randperm(cfg.n_train).split(cfg.batch_size):
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(net(x[ids]), y[ids])
            loss.backward()
            opt.step()
            losses.append(loss.item())
        with torch.no_grad():
            acc = (net(xv).argmax(-1) == yv).float().mean().item()
        print(f"epoch {epoch}: train loss {np.mean(losses):.4f}, val acc {acc:.3f}")


if __name__ == "__main__":
    main()
