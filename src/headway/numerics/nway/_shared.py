"""What the N-way loss shares: the two kinds of lines, block sizes, noise-safe roots, accumulation
dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Calling an autograd Function, with a type.


def apply_function(function: Any, *args: Any) -> Tensor:
    """`function.apply(*args)`; torch leaves it without annotations."""
    out: Tensor = function.apply(*args)
    return out


# How many axes, rows and columns to take at once.

ON_DEVICE = 1 << 27
"""Logits held at once on an accelerator: 512 MiB in float32."""
ON_CPU = 1 << 21


def room(like: Tensor) -> int:
    return ON_CPU if like.device.type == "cpu" else ON_DEVICE


def rows_at_once(like: Tensor, columns: int, depth: int, block: int | None) -> int:
    """`block` if given; else what keeps block × columns × depth inside the room."""
    if block is not None:
        return block
    fit = room(like) // max(columns * depth, 1)
    # Matrix products like multiples of 128; below that, take what there is.
    return max(fit // 128 * 128, min(fit, 128), 16)


def even(step: int, rows: int) -> int:
    """At most `step`, such that the last block is about as large as the others."""
    blocks = -(-rows // step) or 1
    return -(-rows // blocks) or 1


def groups(
    like: Tensor, axes: int, rows: int, columns: int, block: int | None
) -> Iterator[tuple[slice, slice]]:
    """Slices of axes and rows: several whole axes if they fit, else rows of one axis.

    A group of axes costs as many calls as one axis, which is what small batches wait for.
    """
    most = rows_at_once(like, columns, 1, block)
    if block is None and rows <= most:
        step, together = rows, even(max(room(like) // max(rows * columns, 1), 1), axes)
    else:
        step, together = even(most, rows), 1
    for axis in range(0, axes, together):
        for begin in range(0, rows, step):
            yield slice(axis, min(axis + together, axes)), slice(begin, min(begin + step, rows))


# The two kinds of lines. A line varies one index (the columns) and keeps the others (the row).

# Both say how the logits of a block of rows against the columns are computed from tensors that
# belong to the rows and tensors that belong to the columns. How those come from the features is
# ordinary autograd, outside (`scores`).


@dataclass(frozen=True)
class GramLines:
    """One matrix product for each of K axes, together: with x a row of X and y a row of Y

        q = cross ⟨x, y⟩ + x_squares ‖x‖² + y_squares ‖y‖² + row

    and the logit is q, or sign·√q.
    """

    weights: list[float]
    """Of the K losses in their sum."""
    X: Tensor
    """(K, rows, D)"""
    Y: Tensor
    """(K, columns, D)"""
    cross: float = 1.0
    x_squares: float = 0.0
    """Only a square root needs it: what is constant in a row drops out of the softmax."""
    y_squares: float = 0.0
    unit: bool = False
    """The squares of Y are constant: no gradient of them is needed."""
    sign: int | None = None
    """±1: the logit is ±√q. None: it is q itself."""
    row: Tensor | None = None
    """(K, rows); of a root only, too."""
    own: Tensor | None = None
    """(K, rows), of a root: the logits of the right column, if they are known better.

    Where vectors agree, a Gram form takes the difference of nearly equal numbers. Training leads
    there, but on the diagonal only, and that is cheap to compute directly.
    """


Pull = Callable[[Tensor], list[Tensor]]
"""From the gradient of a tile to those of its row and column tensors. Called once at most."""
Tile = Callable[[list[Tensor], list[Tensor]], tuple[Tensor, Pull]]


@dataclass(frozen=True)
class TileLine:
    """Any score: a function from row and column tensors to a (rows, columns) tile and its pull."""

    weight: float
    rows: list[Tensor]
    cols: list[Tensor]
    tile: Tile
    depth: int
    """How many numbers the function needs at once for each logit."""
    own: Tensor | None = None


Line = GramLines | TileLine


# Square roots of differences, which rounding may push below zero. NaN stays NaN.

NOISE = 4
"""How many units of rounding a sum of a few terms may be off by, relative to the terms."""


def root(q: Tensor, size: Tensor | float = 0.0) -> Tensor:
    """√q; 0 with gradient 0 where q is nothing but rounding noise of terms of that `size`."""
    info = torch.finfo(q.dtype)
    noise = q <= NOISE * info.eps * size + info.tiny
    return torch.where(noise, 0.0, torch.where(noise, 1.0, q).sqrt())


def inverse_root(q: Tensor, size: Tensor | float = 0.0) -> Tensor:
    """1/√q; 0 with gradient 0 where q is noise, or so small that powers of 1/√q do not exist."""
    info = torch.finfo(q.dtype)
    noise = q <= NOISE * info.eps * size + info.tiny**0.5
    return torch.where(noise, 0.0, torch.where(noise, 1.0, q).rsqrt())


# The widest floating point type of a device, for sums and factors.


def widest(device: torch.device) -> torch.dtype:
    """float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64
