"""Episodes for few-shot detection: a few objects to learn from, and scenes to find them in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

SIZE = 48
"""Height and width of a scene in pixels."""
CLASSES = 12


@dataclass
class Episode:
    """`n_way` classes, each with a support image and `n_query` scenes that contain one object."""

    support: Tensor
    queries: Tensor
    boxes: Tensor
    """Box of the object in each scene: x1, y1, x2, y2 in pixels."""
    classes: Tensor
    """Class of each scene: the index of its support image."""


class Episodes(Dataset):
    """Textured discs: each class has its own colour and stripes."""

    def __init__(self, count: int, n_way: int, n_query: int, seed: int) -> None:
        self.count, self.n_way, self.n_query, self.seed = count, n_way, n_query, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Episode:
        random = torch.Generator().manual_seed(self.seed * 100_003 + index)
        kinds = torch.randperm(CLASSES, generator=random)[: self.n_way]
        support = torch.stack([_scene(int(kind), random)[0] for kind in kinds])
        scenes = [_scene(int(kind), random) for kind in kinds for _ in range(self.n_query)]
        return Episode(
            support,
            torch.stack([image for image, _ in scenes]),
            torch.stack([box for _, box in scenes]),
            torch.arange(self.n_way).repeat_interleave(self.n_query),
        )


def _scene(kind: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """An image with one object of this kind, and its box."""
    image = 0.15 * torch.randn(3, SIZE, SIZE, generator=random)
    radius = 9 + 6 * torch.rand((), generator=random)
    x, y = radius + (SIZE - 2 * radius) * torch.rand(2, generator=random)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    disc = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
    angle = math.pi * kind / CLASSES
    stripes = torch.sin((rows * math.sin(angle) + columns * math.cos(angle)) * 1.3)
    colour = torch.tensor([math.cos(kind), math.sin(kind), math.cos(2.0 * kind)])
    image = torch.where(disc, image + colour[:, None, None] * (0.6 + 0.4 * stripes), image)
    return image, torch.stack([x - radius, y - radius, x + radius, y + radius])
