"""1-D signal classifier: a convolutional trunk, with a classifier attached later."""

import argparse
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    batch_size: int = 32
    steps: int = 120
    lr: float = 3e-3
    length: int = 64


class SignalNet(nn.Module):
    def __init__(self, width: int = 24):
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, 7, stride=2, padding=3)
        self.conv2 = nn.Conv1d(width, width, 5, stride=2, padding=2)
        self.width = width
        self.classifier = None

    def build_classifier(self, classes: int) -> None:
        self.classifier = nn.Sequential(
            nn.Linear(self.width, self.width), nn.GELU(), nn.Linear(self.width, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.conv1(x))
        h = F.gelu(self.conv2(h)).mean(dim=-1)
        return self.classifier(h)


def make_signals(n: int, length: int) -> tuple[Tensor, Tensor]:
    t = np.linspace(0, 1, length)
    label = np.random.randint(0, 5, n)
    phase = np.random.rand(n, 1) * 2 * np.pi
    wave = np.sin(2 * np.pi * (2 + 2 * label[:, None]) * t[None] + phase)
    wave = wave + 0.3 * np.random.randn(n, length)
    return torch.tensor(wave, dtype=torch.float32)[:, None], torch.tensor(label)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    cfg = Config()
    model = SignalNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)

    signals, labels = make_signals(1536, cfg.length)
    model.build_classifier(int(labels.max()) + 1)

    for step in range(cfg.steps):
        index = torch.randint(0, len(signals), (cfg.batch_size,))
        loss = F.cross_entropy(model(signals[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
