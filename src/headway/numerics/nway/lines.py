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
