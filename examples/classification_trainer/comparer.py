"""The data and the model of the trainers in this folder: which of two images is brighter?

A pair of images has one of three labels: the first is the one, the second is, or they are alike.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

SIZE, PATCH = 32, 4
LABELS = ("first", "second", "similar")


class Pairs(Dataset):
    """Pairs of noisy images of one texture; the label says which of the two is brighter."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count, self.seed = count, seed
        random = torch.Generator().manual_seed(seed)
        self.texture = torch.randn(3, SIZE, SIZE, generator=random)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        levels = torch.randn(2, generator=random)
        noise = torch.randn(2, 3, SIZE, SIZE, generator=random)
        apart = float(levels[0] - levels[1])
        label = 2 if abs(apart) < 0.45 else int(apart < 0)
        return 0.5 * noise + self.texture + levels[:, None, None, None], label


class Comparer(nn.Module):
    """Encodes the patches of both images with one encoder; the head compares the two means."""

    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.encoder = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        )
        self.head = nn.Linear(2 * width, len(LABELS))

    def forward(self, images: Tensor) -> Tensor:
        both = self.patches(images.flatten(0, 1)).flatten(2).transpose(1, 2)
        means = self.encoder(both).mean(1)
        return self.head(means.unflatten(0, images.shape[:2]).flatten(1))
