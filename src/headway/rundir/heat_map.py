"""Builds a layer × step heat map in bounded memory: the largest value of each cell, and whether any
is non-finite.

Cells are as wide as they have to be, a power of two of steps; rows are tensors, several to a row
where a model has thousands. The largest value of a cell stays, so that one bad tensor at one step
is seen in a run of a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CELLS = 256
"""Along the steps, at most."""
MAX_HEAT_ROWS = 400
"""Along the tensors, at most."""
MAX_TENSORS = 4096
"""Tensors told apart while a run is read."""
STEPS_PER_FOLD = 256
"""Steps gathered before they are folded."""

ABSENT, ZERO, BAD = -32768, -32767, 32767
"""Codes of a cell without a value, of one whose largest value is 0, and of a non-finite one."""


@dataclass(frozen=True)
class HeatMap:
    """The picture: `codes[row, cell]` is 100 times the decimal logarithm of the largest value."""

    rows: Sequence[str]
    """The tensor of each row, or the first and the last of several."""
    start: int
    width: int
    """x where the first cell begins, and how much one covers."""
    codes: NDArray[np.int16]
    left_out: int = 0
    """Tensors beyond those that are told apart."""


class HeatSampler:
    """One column over the parameters. Feed it steps in order; ask for the picture at any time."""

    def __init__(self, cells: int = CELLS, names: int = MAX_TENSORS) -> None:
        self._cells = cells
        self._most = names
        self._width = 1
        self._rows: dict[str, int] = {}
        self._place: NDArray[np.int64] = np.empty(0, np.int64)
        """The row of each position on the axis; −1 for those left out."""
        self._largest: NDArray[np.float64] = np.full((0, cells), -1.0)
        """−1: nothing yet."""
        self._bad: NDArray[np.bool_] = np.zeros((0, cells), bool)
        self._origin: int | None = None
        self._end = 0
        self._left_out: set[str] = set()
        self._waiting: list[tuple[int, NDArray[np.float64]]] = []
        self._at: NDArray[np.int64] | None = None
        """The positions that those waiting belong to; None: all, in order."""

    def axis(self, names: Sequence[str]) -> None:
        """The names along the axis from here on."""
        self._fold()
        for name in names:
            if name not in self._rows:
                if len(self._rows) < self._most:
                    self._rows[name] = len(self._rows)
                elif len(self._left_out) < self._most:
                    self._left_out.add(name)
        self._place = np.asarray([self._rows.get(name, -1) for name in names], np.int64)
        more = len(self._rows) - len(self._largest)
        if more > 0:
            self._largest = np.vstack([self._largest, np.full((more, self._cells), -1.0)])
            self._bad = np.vstack([self._bad, np.zeros((more, self._cells), bool)])

    def add(self, x: int, values: Sequence[float] | Floats, index: Sequence[int] | None) -> None:
        """The values of one step, of all positions or of some."""
        try:
            y = np.abs(np.asarray(values, np.float64))
            at = None if index is None else np.asarray(index, np.int64)
        except (TypeError, ValueError, OverflowError):
            return
        if y.ndim != 1 or (at is not None and at.shape != y.shape):
            return
        same = at is self._at or (
            at is not None and self._at is not None and np.array_equal(at, self._at)
        )
        if self._waiting and (not same or len(y) != len(self._waiting[0][1])):
            self._fold()
        self._at = at
        self._waiting.append((x, y))
        if len(self._waiting) >= STEPS_PER_FOLD:
            self._fold()

    def _fold(self) -> None:
        """Steps that tell the same tensors, all at once."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        size = len(waiting[0][1])
        at = np.arange(size) if self._at is None else self._at
        known = (at >= 0) & (at < len(self._place))
        rows = (
            np.where(known, self._place[np.where(known, at, 0)], -1) if known.any() else at * 0 - 1
        )
        if not (rows >= 0).any():
            return
        table = np.stack([y for _, y in waiting])[:, rows >= 0]
        rows = rows[rows >= 0]
        for x, _ in waiting:
            self._cell(x)  # first of all as wide as they have to be
        cells = np.asarray([self._cell(x) for x, _ in waiting])
        starts = np.flatnonzero(np.r_[True, np.diff(cells) != 0])
        finite = np.isfinite(table)
        bad = np.logical_or.reduceat(~finite, starts, axis=0)
        largest = np.maximum.reduceat(np.where(finite, table, -1.0), starts, axis=0)
        for number, cell in enumerate(cells[starts].tolist()):
            # One row may stand for several positions.
            np.logical_or.at(self._bad, (rows, cell), bad[number])
            np.maximum.at(self._largest, (rows, cell), largest[number])

    def picture(self, rows: int = MAX_HEAT_ROWS) -> HeatMap | None:
        """What has been gathered; None where there is nothing."""
        self._fold()
        if self._origin is None:
            return None
        cells = (self._end - self._origin) // self._width + 1
        size = max(-(-len(self._rows) // rows), 1)
        starts = np.arange(0, len(self._rows), size)
        largest = np.maximum.reduceat(self._largest[:, :cells], starts, axis=0)
        bad = np.logical_or.reduceat(self._bad[:, :cells], starts, axis=0)
        names = list(self._rows)
        return HeatMap(
            rows=[_name_row(names[start : start + size]) for start in starts.tolist()],
            start=self._origin,
            width=self._width,
            codes=_encode_cells(largest, bad),
            left_out=len(self._left_out),
        )

    def _cell(self, x: int) -> int:
        if self._origin is None:
            self._origin = x
        self._end = max(self._end, x)
        while (x - self._origin) // self._width >= self._cells:
            self._halve()
        return max((x - self._origin) // self._width, 0)

    def _halve(self) -> None:
        """Cells become twice as wide."""
        self._width *= 2
        half = -(-self._cells // 2)
        for pairs, empty in ((self._largest, -1.0), (self._bad, False)):
            folded = np.maximum.reduceat(pairs, np.arange(0, self._cells, 2), axis=1)
            pairs[:, :half] = folded
            pairs[:, half:] = empty


def _name_row(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} tensors)"


def _encode_cells(largest: NDArray[np.float64], bad: NDArray[np.bool_]) -> NDArray[np.int16]:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.round(100 * np.log10(largest))
    codes = np.where(largest > 0, np.nan_to_num(logs, neginf=ZERO), ABSENT)
    codes = np.where(largest == 0, ZERO, codes)
    return np.where(bad, BAD, codes).astype(np.int16)
