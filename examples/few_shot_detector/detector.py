"""A small few-shot detector: features of a scene, weighted by the prototype of a class."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRIDE = 8
BINS = 16
"""A side's distance from the cell is a distribution over 0 … BINS, in units of half a stride."""
UNIT = STRIDE / 2


class Output(NamedTuple):
    sides: Tensor
    """Logits of the four distances at each cell: (scenes, 4, BINS + 1, rows, columns)."""
    heat: Tensor
    """Similarity of each cell to the class that is searched: (scenes, rows, columns)."""
    features: Tensor
    """(scenes, channels, rows, columns)"""


def block(wide: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.GroupNorm(4, out), nn.SiLU()
    )


class FewShotDetector(nn.Module):
    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            block(3, 16, 2), block(16, channels, 2), block(channels, channels, 2)
        )
        self.fuse = block(2 * channels, channels, 1)
        self.sides = nn.Conv2d(channels, 4 * (BINS + 1), 1)

    def forward(self, support: Tensor, queries: Tensor, classes: Tensor) -> Output:
        prototypes = self.backbone(support).mean((2, 3))[classes]
        features = self.backbone(queries)
        sought = prototypes[:, :, None, None]
        heat = F.cosine_similarity(features, sought, dim=1)
        fused = self.fuse(torch.cat([features, features * sought], 1))
        return Output(self.sides(fused).unflatten(1, (4, BINS + 1)), heat, fused)


def cells_in(boxes: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The cells whose middle lies in the box of their scene: scene, row, column and middle."""
    along = (torch.arange(cells) + 0.5) * STRIDE
    columns = (along > boxes[:, 0:1]) & (along < boxes[:, 2:3])
    rows = (along > boxes[:, 1:2]) & (along < boxes[:, 3:4])
    scene, row, column = (rows[:, :, None] & columns[:, None, :]).nonzero(as_tuple=True)
    return scene, row, column, torch.stack([along[column], along[row]], 1)


def cell_of(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The row and column of the cell at the middle of each box."""
    column, row = ((boxes[:, :2] + boxes[:, 2:]) / 2 / STRIDE).long().unbind(1)
    return row, column


def distances(boxes: Tensor, middles: Tensor) -> Tensor:
    """From a cell's middle to the four sides of its box, in units of the bins."""
    both = torch.cat([middles - boxes[:, :2], boxes[:, 2:] - middles], 1) / UNIT
    return both.clamp(0, BINS - 0.01)


def boxes_of(sides: Tensor, middles: Tensor) -> Tensor:
    """Boxes decoded from the logits of their sides: the mean of each distribution."""
    bins = torch.arange(BINS + 1, dtype=sides.dtype, device=sides.device)
    far = (sides.softmax(-1) * bins).sum(-1) * UNIT
    return torch.cat([middles - far[:, :2], middles + far[:, 2:]], 1)


def iou(ours: Tensor, theirs: Tensor) -> Tensor:
    """Overlap of boxes, pair by pair."""
    low, high = torch.max(ours[:, :2], theirs[:, :2]), torch.min(ours[:, 2:], theirs[:, 2:])
    common = (high - low).clamp(min=0).prod(1)
    areas = (ours[:, 2:] - ours[:, :2]).prod(1) + (theirs[:, 2:] - theirs[:, :2]).prod(1)
    return common / (areas - common + 1e-6)
