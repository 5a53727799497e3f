"""Downsamples series in bounded memory; extremes and non-finite values are kept."""

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
"""Number of buckets; more than a chart has pixels."""
MEANS = 500
"""Number of means from which a smoothed curve is drawn."""
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
