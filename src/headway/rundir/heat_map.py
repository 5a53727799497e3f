"""Heat maps, layer × step, in bounded memory.

A cell covers a power of two of steps; a row is a tensor, or several in a model with thousands. A
cell keeps its largest value and how many of its values are non-finite, so that one bad tensor at
one step is visible in a run of a million.

Layers are not measured at every step, and large models are measured in rotation, so many cells have
no value. `measured_columns` turns the cells into the columns that are drawn: each covers the steps
from one measurement to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headway.rundir.downsample import Floats, Ints

CELLS = 256
"""Maximum number of cells along the steps."""
MAX_HEAT_ROWS = 400
"""Maximum number of rows."""
MAX_TENSORS = 4096
"""Maximum number of tensors that are kept separately."""
FIRST_CELLS = 64
"""Cells with memory before they are needed."""
STEPS_PER_FOLD = 256
"""Steps buffered before they are folded."""

ABSENT, ZERO, BAD = -32768, -32767, 32767
"""Codes of a cell without a value, with a maximum of 0, and with a non-finite value."""


@dataclass(frozen=True)
class HeatMap:
    """`codes[row, cell]` is 100 times the decimal logarithm of the largest value."""

    rows: Sequence[str]
    """The tensor of each row, or the first and last of several."""
    start: int
    width: int
    """x of the first cell, and x per cell."""
    codes: NDArray[np.int16]
    left_out: int = 0
    """Tensors beyond `MAX_TENSORS`."""


class HeatSampler:
    """One column over the parameters. Add steps in order; read the map at any time."""

    def __init__(self, cells: int = CELLS, names: int = MAX_TENSORS) -> None:
        self._cells = cells
        self._most = names
        self._width = 1
        self._rows: dict[str, int] = {}
        self._place: NDArray[np.int64] = np.empty(0, np.int64)
        """The row of each position on the axis; −1 for none."""
        self._largest: NDArray[np.float64] = np.full((0, FIRST_CELLS), -1.0)
        """−1 for no value yet. It grows to `cells` columns as they are needed."""
        self._bad: NDArray[np.int32] = np.zeros((0, FIRST_CELLS), np.int32)
        self._seen: NDArray[np.int32] = np.zeros((0, FIRST_CELLS), np.int32)
        """Values that are not finite, and all of them."""
        self._origin: int | None = None
        self._end = 0
        self._left_out: set[str] = set()
        self._waiting: list[tuple[int, NDArray[np.float64]]] = []
        self._at: NDArray[np.int64] | None = None
        """The positions of the buffered values; None for all, in order."""
        self._made: dict[tuple[str, int], HeatMap | None] = {}
        """Cache of the maps since the last value: a page that zooms requests them repeatedly."""

    def axis(self, names: Sequence[str]) -> None:
        """Set the names along the axis for the steps that follow."""
        self._fold()
        self._made = {}
        for name in names:
            if name not in self._rows:
                if len(self._rows) < self._most:
                    self._rows[name] = len(self._rows)
                elif len(self._left_out) < self._most:
                    self._left_out.add(name)
        self._place = np.asarray([self._rows.get(name, -1) for name in names], np.int64)
        more = len(self._rows) - len(self._largest)
        if more > 0:
            self._enlarge((more, 0))

    def add(self, x: int, values: Sequence[float] | Floats, index: Sequence[int] | None) -> None:
        """Add the values of one step, for all positions or those in `index`."""
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
        """Fold buffered steps that have the same positions."""
        if not self._waiting:
            return
        waiting, self._waiting, self._made = self._waiting, [], {}
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
            self._cell(x)  # sets the final cell width before cells are computed
        cells = np.asarray([self._cell(x) for x, _ in waiting])
        starts = np.flatnonzero(np.r_[True, np.diff(cells) != 0])
        finite = np.isfinite(table)
        bad = np.add.reduceat(~finite, starts, axis=0, dtype=np.int32)
        steps = np.diff(np.r_[starts, len(cells)])
        largest = np.maximum.reduceat(np.where(finite, table, -1.0), starts, axis=0)
        for number, cell in enumerate(cells[starts].tolist()):
            # One row may stand for several positions.
            np.add.at(self._bad, (rows, cell), bad[number])
            np.add.at(self._seen, (rows, cell), steps[number])
            np.maximum.at(self._largest, (rows, cell), largest[number])

    def picture(self, rows: int = MAX_HEAT_ROWS) -> HeatMap | None:
        """The heat map so far; None if it is empty."""
        return self._remember("picture", rows, self._picture)

    def nonfinite_shares(self, rows: int = MAX_HEAT_ROWS) -> HeatMap | None:
        """The share of non-finite values in each cell; None if all are finite."""
        return self._remember("shares", rows, self._shares)

    def _remember(
        self, kind: str, rows: int, make: Callable[[int], HeatMap | None]
    ) -> HeatMap | None:
        self._fold()
        if (kind, rows) not in self._made:
            self._made[kind, rows] = None if self._origin is None else make(rows)
        return self._made[kind, rows]

    def _picture(self, rows: int) -> HeatMap:
        starts, cells = self._groups(rows)
        largest = np.maximum.reduceat(self._largest[:, :cells], starts, axis=0)
        bad = np.add.reduceat(self._bad[:, :cells], starts, axis=0)
        return self._map(starts, _encode_cells(largest, bad > 0))

    def _shares(self, rows: int) -> HeatMap | None:
        if not self._bad.any():
            return None
        starts, cells = self._groups(rows)
        seen = self._seen[:, :cells]
        shares = np.where(seen > 0, self._bad[:, :cells] / np.maximum(seen, 1), -1.0)
        shares = np.maximum.reduceat(shares, starts, axis=0)
        return self._map(starts, _encode_cells(shares, np.zeros(shares.shape, bool)))

    def _groups(self, rows: int) -> tuple[NDArray[np.int64], int]:
        """The first tensor of each row, and the number of cells."""
        size = max(-(-len(self._rows) // rows), 1)
        cells = (self._end - (self._origin or 0)) // self._width + 1
        return np.arange(0, len(self._rows), size), cells

    def _map(self, starts: NDArray[np.int64], codes: NDArray[np.int16]) -> HeatMap:
        names = list(self._rows)
        ends = [*starts[1:].tolist(), len(names)]
        return HeatMap(
            rows=[_name_row(names[a:b]) for a, b in zip(starts.tolist(), ends, strict=True)],
            start=self._origin or 0,
            width=self._width,
            codes=codes,
            left_out=len(self._left_out),
        )

    def _cell(self, x: int) -> int:
        if self._origin is None:
            self._origin = x
        times = 1
        while (x - self._origin) // (self._width * times) >= self._cells:
            times *= 2
        if times > 1:
            self._widen(times)
        self._end = max(self._end, x)
        cell = max((x - self._origin) // self._width, 0)
        room = self._largest.shape[1]
        if cell >= room:
            self._enlarge((0, min(max(cell + 1, 2 * room), self._cells) - room))
        return cell

    def _enlarge(self, by: tuple[int, int]) -> None:
        """Add this number of rows and columns without values."""
        wider = ((0, by[0]), (0, by[1]))
        self._largest = np.pad(self._largest, wider, constant_values=-1.0)
        self._bad, self._seen = np.pad(self._bad, wider), np.pad(self._seen, wider)

    def _widen(self, times: int) -> None:
        """Make the cells wider by a power of two."""
        used = (self._end - (self._origin or 0)) // self._width + 1
        self._width *= times
        groups = np.arange(0, used, times)
        for cells, fold, empty in (
            (self._largest, np.maximum, -1.0),
            (self._bad, np.add, 0),
            (self._seen, np.add, 0),
        ):
            cells[:, : len(groups)] = fold.reduceat(cells[:, :used], groups, axis=1)
            cells[:, len(groups) : used] = empty


def _name_row(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} tensors)"


def _encode_cells(largest: NDArray[np.float64], bad: NDArray[np.bool_]) -> NDArray[np.int16]:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.round(100 * np.log10(largest))
    codes = np.where(largest > 0, np.nan_to_num(logs, neginf=ZERO), ABSENT)
    codes = np.where(largest == 0, ZERO, codes)
    return np.where(bad, BAD, codes).astype(np.int16)


def cut_heat_map(picture: HeatMap, begin: int, end: int) -> HeatMap | None:
    """The cells of a window."""
    first = max((begin - picture.start) // picture.width, 0)
    last = (end - picture.start) // picture.width
    codes = picture.codes[:, first : max(last + 1, first)]
    if not codes.shape[1]:
        return None
    start, width = picture.start + first * picture.width, picture.width
    size = -(-codes.shape[1] // CELLS)
    if size > 1:  # codes sort by severity: the worst is kept
        codes = np.maximum.reduceat(codes, np.arange(0, codes.shape[1], size), axis=1)
        width *= size
    return replace(picture, start=start, width=width, codes=codes)


FULL_ROW = 0.9
"""Share of the columns in which the typical row must have a value."""


@dataclass(frozen=True)
class MeasuredColumns:
    """The columns of a heat map that have values."""

    starts: Ints
    ends: Ints
    """The first and the last x of the measurements in each column."""
    codes: NDArray[np.int16]


def measured_columns(picture: HeatMap) -> MeasuredColumns:
    """The columns of a heat map, each with a measurement; it is drawn until the next one begins.

    Where the tensors take turns, neighbouring columns are merged until most rows have a value in
    each; the worst value of a row is kept.
    """
    codes = picture.codes
    measured = np.flatnonzero((codes != ABSENT).any(axis=0))
    starts, codes = picture.start + measured * picture.width, codes[:, measured]
    ends = starts + picture.width - 1
    while codes.shape[1] > 1 and _typical_fill(codes) < FULL_ROW:
        pairs = np.arange(0, codes.shape[1], 2)
        starts, ends = starts[pairs], np.maximum.reduceat(ends, pairs)
        codes = np.maximum.reduceat(codes, pairs, axis=1)
    return MeasuredColumns(starts, ends, codes)


def _typical_fill(codes: NDArray[np.int16]) -> float:
    """The share of columns with a value in the median row, between its first and its last."""
    known = codes != ABSENT
    known = known[known.any(axis=1)]
    if not len(known):
        return 1.0
    first = known.argmax(axis=1)
    last = known.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    return float(np.median(known.sum(axis=1) / (last - first + 1)))


# The layer that changed first before a bad step.

WINDOW = 48
"""Columns before the bad step that are compared."""
LEAST_COLUMNS = 8
LEAST_CHANGE, SPREADS = 0.5, 5.0
"""A change is a factor of 3 (half a power of ten), and this many times the row's usual spread."""
SINGLE_CHANGE = 1.0
"""A change in the last column alone is a factor of 10."""


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A row whose gradient norm left its usual level and stayed away until the bad step."""

    row: str
    x: int
    """Where it left its level."""
    factor: float
    """Its last norm before the bad step ÷ its usual one."""
    together: int
    """Other rows that changed in the same column."""


def find_first_change(picture: HeatMap, x: int) -> LayerChange | None:
    """The first row that changed before `x`; None if none did, or too little is known."""
    columns = measured_columns(picture)
    # The column that contains x already has the bad values.
    before = np.flatnonzero(columns.ends < x)[-WINDOW:]
    if len(before) < LEAST_COLUMNS:
        return None
    starts, codes = columns.starts[before], columns.codes[:, before]
    known = (codes != ABSENT) & (codes != ZERO) & (codes != BAD)
    rows = np.flatnonzero(known.sum(axis=1) >= LEAST_COLUMNS)
    found: list[tuple[int, float, int]] = []
    for row in rows.tolist():
        where = np.flatnonzero(known[row])
        change = _last_change(codes[row, where] / 100.0)
        if change is not None:
            length, size = change
            found.append((int(where[-length]), size, row))
    if not found:
        return None
    column, size, row = min(found, key=lambda item: (item[0], -abs(item[1])))
    together = sum(item[0] == column for item in found) - 1
    return LayerChange(picture.rows[row], int(starts[column]), float(10.0**size), together)


def _last_change(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, float] | None:
    """Number of values at the end for which a row was off its level, and how far it is off last."""
    usual = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - usual)))
    off = np.abs(logs - usual) > max(LEAST_CHANGE, SPREADS * spread)
    length = len(off) if off.all() else int(np.argmax(~off[::-1]))
    size = float(logs[-1]) - usual
    if not length or (length == 1 and abs(size) < SINGLE_CHANGE):
        return None
    return length, size
