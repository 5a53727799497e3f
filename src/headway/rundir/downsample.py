"""Downsamples series and heat maps in bounded memory; extremes and non-finite values are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Series. The x axis is divided into buckets whose width is a power of two. Each bucket keeps its
# minimum and maximum at their original steps, so that no spike is averaged away, and the first
# step, last step and count of every kind of non-finite value. With too many buckets the width
# doubles. The minimum of minima is the minimum, so the order of folding does not matter. The mean
# and count of each bucket are kept, too: a smoothed curve follows the mean, not the extremes.

BUCKETS = 1500
"""More than a chart has pixels."""
MEANS = 500
"""Means from which a smoothed curve is drawn."""
POINTS_PER_FOLD = 1 << 14
"""Points buffered before they are folded."""
KINDS = ("NaN", "Infinity", "-Infinity")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Gap:
    """Non-finite values of one kind within one bucket."""

    kind: str
    first: int
    last: int
    count: int


class Downsampler:
    """One series. Add points with non-decreasing x; read it at any time."""

    def __init__(self, buckets: int = BUCKETS) -> None:
        if buckets < 2:
            raise ValueError(f"a series has at least 2 buckets: got {buckets}")
        self.buckets = buckets
        self.width = 1
        self.seen = 0
        self._x: list[int] = []
        self._y: list[float] = []
        self._many: list[tuple[Ints, Floats]] = []
        self._waiting = 0
        """Points in `_many`."""
        self._kept_x: Ints = np.empty(0, np.int64)
        self._kept_y: Floats = np.empty(0, np.float64)
        self._gaps: Ints = np.empty((0, 4), np.int64)
        """Rows of kind, first, last, count; in the order of x."""
        self._first: Ints = np.empty(0, np.int64)
        self._means: Floats = np.empty((0, 2), np.float64)
        """The first x of each bucket; the mean and the number of its finite values."""

    def add(self, x: int, y: float) -> None:
        """Add one point."""
        self._x.append(x)
        self._y.append(y)
        self.seen += 1
        if len(self._x) >= POINTS_PER_FOLD:
            self._fold()

    def extend(self, x: Ints, y: Floats) -> None:
        """Add many points."""
        if len(self._x):
            self._fold()
        self.seen += len(x)
        self._many.append((x, y))
        self._waiting += len(x)
        if self._waiting >= POINTS_PER_FOLD:
            self._fold()

    def points(self) -> tuple[Ints, Floats]:
        """The finite points, in order."""
        self._fold()
        return self._kept_x, self._kept_y

    def means(self, most: int = MEANS) -> tuple[Ints, Floats]:
        """The mean of each bucket, in at most `most` wider ones; empty if every point is kept."""
        self._fold()
        if self.width == 1 or not len(self._first):
            return np.empty(0, np.int64), np.empty(0, np.float64)
        width = self.width
        while _count(self._first // width) > most:
            width *= 2
        first, means = _merge_means(self._first, self._means, width)
        return first // width * width + width // 2, means[:, 0]

    def gaps(self) -> list[Gap]:
        """The non-finite values of each bucket."""
        self._fold()
        return [
            Gap(KINDS[int(kind)], int(first), int(last), int(count))
            for kind, first, last, count in self._gaps
        ]

    def narrowed(self, first: int, last: int, buckets: int) -> Downsampler:
        """The part from `first` to `last`, both included, in at most `buckets` buckets."""
        part = Downsampler(buckets)
        x, y = self.points()
        begin, end = np.searchsorted(x, [first, last + 1])
        part.width = self.width
        part._kept_x, part._kept_y = x[begin:end], y[begin:end]
        gaps = self._gaps[(self._gaps[:, 2] >= first) & (self._gaps[:, 1] <= last)]
        part._gaps = gaps
        inside = (self._first >= first) & (self._first <= last)
        part._first, part._means = self._first[inside], self._means[inside]
        part._squeeze()
        part.seen = len(part._kept_x) + int(part._gaps[:, 3].sum())
        return part

    def followed_by(self, other: Downsampler) -> Downsampler:
        """This series followed by another."""
        x, y = self.points()
        more_x, more_y = other.points()
        both = Downsampler(max(self.buckets, other.buckets))
        both.width = max(self.width, other.width)
        both.seen = self.seen + other.seen
        both._kept_x, both._kept_y = np.concatenate([x, more_x]), np.concatenate([y, more_y])
        both._gaps = np.concatenate([self._gaps, other._gaps])
        both._first = np.concatenate([self._first, other._first])
        both._means = np.concatenate([self._means, other._means])
        both._squeeze()
        return both

    def _fold(self) -> None:
        if self._x:
            self._many.append((np.asarray(self._x, np.int64), np.asarray(self._y, np.float64)))
            self._x, self._y = [], []
        if not self._many:
            return
        x = np.concatenate([part[0] for part in self._many])
        y = np.concatenate([part[1] for part in self._many])
        self._many, self._waiting = [], 0
        finite = np.isfinite(y)
        if not finite.all():
            self._take_gaps(x[~finite], y[~finite])
            x, y = x[finite], y[finite]
        self._kept_x = np.concatenate([self._kept_x, x])
        self._kept_y = np.concatenate([self._kept_y, y])
        self._first = np.concatenate([self._first, x])
        self._means = np.concatenate([self._means, np.stack([y, np.ones_like(y)], axis=1)])
        self._squeeze()

    def _squeeze(self) -> None:
        while _count(self._kept_x // self.width) > self.buckets:
            self.width *= 2
        while _count(self._gaps[:, 1] // self.width) > self.buckets:
            self.width *= 2
        kept = extremes(self._kept_x // self.width, self._kept_y)
        self._kept_x, self._kept_y = self._kept_x[kept], self._kept_y[kept]
        self._gaps = _merge_gaps(self._gaps, self.width)
        self._first, self._means = _merge_means(self._first, self._means, self.width)

    def _take_gaps(self, x: Ints, y: Floats) -> None:
        kinds = np.where(np.isnan(y), 0, np.where(y > 0, 1, 2))
        new = np.stack([kinds, x, x, np.ones_like(x)], axis=1)
        self._gaps = np.concatenate([self._gaps, new])


def downsample(
    x: Sequence[int], y: Sequence[float], buckets: int = BUCKETS
) -> tuple[list[int], list[float], list[Gap]]:
    """Downsample a whole series: steps, values and non-finite values."""
    series = Downsampler(buckets)
    for step, value in zip(x, y, strict=True):
        series.add(step, value)
    kept_x, kept_y = series.points()
    return kept_x.tolist(), kept_y.tolist(), series.gaps()


def extremes(bucket: Ints, y: Floats) -> Ints:
    """Positions of the first minimum and the last maximum of each bucket, in order.

    `bucket` is non-decreasing.
    """
    if not len(y):
        return np.empty(0, np.int64)
    starts = np.flatnonzero(np.r_[True, np.diff(bucket) != 0])
    sizes = np.diff(np.r_[starts, len(y)])
    number = np.repeat(np.arange(len(starts)), sizes)
    lowest = np.flatnonzero(y == np.minimum.reduceat(y, starts)[number])
    highest = np.flatnonzero(y == np.maximum.reduceat(y, starts)[number])
    first = lowest[np.r_[True, np.diff(number[lowest]) != 0]]
    last = highest[np.r_[np.diff(number[highest]) != 0, True]]
    return np.unique(np.r_[first, last])


def _merge_gaps(gaps: Ints, width: int) -> Ints:
    """Merge the rows of each bucket and kind."""
    if not len(gaps):
        return gaps
    bucket = gaps[:, 1] // width
    order = np.lexsort((gaps[:, 1], gaps[:, 0], bucket))
    sorted_gaps, buckets = gaps[order], bucket[order]
    fresh = (np.diff(buckets) != 0) | (np.diff(sorted_gaps[:, 0]) != 0)
    starts = np.flatnonzero(np.r_[True, fresh])
    merged = np.stack(
        [
            sorted_gaps[starts, 0],
            np.minimum.reduceat(sorted_gaps[:, 1], starts),
            np.maximum.reduceat(sorted_gaps[:, 2], starts),
            np.add.reduceat(sorted_gaps[:, 3], starts),
        ],
        axis=1,
    )
    return merged[np.argsort(merged[:, 1], kind="stable")]


def _merge_means(first: Ints, means: Floats, width: int) -> tuple[Ints, Floats]:
    """The mean and count of each bucket; `first` is non-decreasing."""
    if not len(first):
        return first, means
    starts = np.flatnonzero(np.r_[True, np.diff(first // width) != 0])
    if len(starts) == len(first):
        return first, means
    count = np.add.reduceat(means[:, 1], starts)
    shares = means[:, 1] / np.repeat(count, np.diff(np.r_[starts, len(first)]))
    # A mean of means: the sum of large values would overflow.
    mean = np.add.reduceat(means[:, 0] * shares, starts)
    return first[starts], np.stack([mean, count], axis=1)


def _count(bucket: Ints) -> int:
    """The number of different buckets; `bucket` is non-decreasing."""
    return int(np.count_nonzero(np.diff(bucket))) + 1 if len(bucket) else 0


def join_series(one: Downsampler | None, other: Downsampler | None, points: int) -> Downsampler:
    """Two adjacent series as one; either may be missing."""
    if one is None or other is None:
        return one or other or Downsampler(points)
    return one.followed_by(other)


PICKED_ROWS = 6
"""Rows that `pick_rows` returns at most."""


def pick_rows(rows: Ints, most: int = PICKED_ROWS) -> Ints:
    """The first few of many rows, and some of the rest at equal distances."""
    if len(rows) <= most:
        return rows
    half = most // 2
    later = np.linspace(half, len(rows) - 1, most - half).astype(np.int64)
    return np.concatenate([rows[:half], rows[later]])


# Heat maps, layer × step. A cell covers a power of two of steps; a row is a tensor, or several in a
# model with thousands. A cell keeps its largest value and whether any is non-finite, so that one
# bad tensor at one step is visible in a run of a million.

CELLS = 256
"""Maximum number of cells along the steps."""
MAX_HEAT_ROWS = 400
"""Maximum number of rows."""
MAX_TENSORS = 4096
"""Maximum number of tensors that are kept separately."""
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
        self._largest: NDArray[np.float64] = np.full((0, cells), -1.0)
        """−1 for no value yet."""
        self._bad: NDArray[np.bool_] = np.zeros((0, cells), bool)
        self._origin: int | None = None
        self._end = 0
        self._left_out: set[str] = set()
        self._waiting: list[tuple[int, NDArray[np.float64]]] = []
        self._at: NDArray[np.int64] | None = None
        """The positions of the buffered values; None for all, in order."""

    def axis(self, names: Sequence[str]) -> None:
        """Set the names along the axis for the steps that follow."""
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
            self._cell(x)  # sets the final cell width before cells are computed
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
        """The heat map so far; None if it is empty."""
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
        """Double the width of the cells."""
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
