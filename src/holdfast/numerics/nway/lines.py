"""The two kinds of lines. A line varies one index (the columns) and keeps the others (the row).

Both say how the logits of a block of rows against the columns are computed from tensors that
belong to the rows and tensors that belong to the columns. How those come from the features is
ordinary autograd, outside (`scores`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class GramLine:
    """One matrix product per line: `q = row + col + X Yᵀ`; the logit is q, or sign·√q."""

    X: Tensor
    """(rows, D)"""
    Y: Tensor
    """(columns, D)"""
    col: Tensor | None = None
    row: Tensor | None = None
    """Only a square root needs it: what is constant in a row drops out of the softmax."""
    sign: int | None = None
    """±1: the logit is ±√q. None: it is q itself."""
    own: Tensor | None = None
    """Of a root: the logits of the right column, if they are known better than by Grams.

    Where vectors agree, a Gram form takes the difference of nearly equal numbers. Training leads
    there, but on the diagonal only, and that is cheap to compute directly.
    """


Tile = Callable[[list[Tensor], list[Tensor]], Tensor]


@dataclass(frozen=True)
class TileLine:
    """Any score: a function from row tensors and column tensors to a (rows, columns) tile."""

    rows: list[Tensor]
    cols: list[Tensor]
    tile: Tile
    depth: int
    """How many numbers the function needs at once for each logit."""
    own: Tensor | None = None


Line = GramLine | TileLine
