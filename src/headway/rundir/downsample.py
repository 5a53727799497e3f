"""Downsamples a long series in bounded memory without losing extremes or non-finite values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A long series in bounded memory, with nothing hidden that a reader looks for.

# The x axis is cut into buckets whose width is a power of two. Of each bucket the lowest and the
# highest value stay, at the very steps they came from, so that no spike is ever averaged away; and
# of every kind of non-finite value the first step, the last and how many there were. When there
# are too many buckets the width doubles. Because a minimum of minima is the minimum, the outcome
# is the same however the points arrived.

BUCKETS = 1500
"""Wider than a chart on any screen has pixels to tell apart."""
POINTS_PER_FOLD = 1 << 14
"""Points gathered before they are folded."""
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
    """One series. Feed it points with x never falling; ask for what is left at any time."""

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

    def add(self, x: int, y: float) -> None:
        """One more point."""
        self._x.append(x)
        self._y.append(y)
        self.seen += 1
        if len(self._x) >= POINTS_PER_FOLD:
            self._fold()

    def extend(self, x: Ints, y: Floats) -> None:
        """Many points at once, after all those before."""
        if len(self._x):
            self._fold()
        self.seen += len(x)
        self._many.append((x, y))
        self._waiting += len(x)
        if self._waiting >= POINTS_PER_FOLD:
            self._fold()

    def points(self) -> tuple[Ints, Floats]:
        """The finite points that were kept, in order."""
        self._fold()
        return self._kept_x, self._kept_y

    def gaps(self) -> list[Gap]:
        """The non-finite values, bucket by bucket."""
        self._fold()
        return [
            Gap(KINDS[int(kind)], int(first), int(last), int(count))
            for kind, first, last, count in self._gaps
        ]

    def narrowed(self, first: int, last: int, buckets: int) -> Downsampler:
        """What was kept of a stretch of x, both ends included, in so many buckets at most."""
        part = Downsampler(buckets)
        x, y = self.points()
        begin, end = np.searchsorted(x, [first, last + 1])
        part.width = self.width
        part._kept_x, part._kept_y = x[begin:end], y[begin:end]
        gaps = self._gaps[(self._gaps[:, 2] >= first) & (self._gaps[:, 1] <= last)]
        part._gaps = gaps
        part._squeeze()
        part.seen = len(part._kept_x) + int(part._gaps[:, 3].sum())
        return part

    def followed_by(self, other: Downsampler) -> Downsampler:
        """Both, one after the other."""
        x, y = self.points()
        more_x, more_y = other.points()
        both = Downsampler(max(self.buckets, other.buckets))
        both.width = max(self.width, other.width)
        both.seen = self.seen + other.seen
        both._kept_x, both._kept_y = np.concatenate([x, more_x]), np.concatenate([y, more_y])
        both._gaps = np.concatenate([self._gaps, other._gaps])
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
        self._squeeze()

    def _squeeze(self) -> None:
        while _count(self._kept_x // self.width) > self.buckets:
            self.width *= 2
        while _count(self._gaps[:, 1] // self.width) > self.buckets:
            self.width *= 2
        kept = extremes(self._kept_x // self.width, self._kept_y)
        self._kept_x, self._kept_y = self._kept_x[kept], self._kept_y[kept]
        self._gaps = _merge_gaps(self._gaps, self.width)

    def _take_gaps(self, x: Ints, y: Floats) -> None:
        kinds = np.where(np.isnan(y), 0, np.where(y > 0, 1, 2))
        new = np.stack([kinds, x, x, np.ones_like(x)], axis=1)
        self._gaps = np.concatenate([self._gaps, new])


def downsample(
    x: Sequence[int], y: Sequence[float], buckets: int = BUCKETS
) -> tuple[list[int], list[float], list[Gap]]:
    """A whole series at once: steps, values, and what was not finite."""
    series = Downsampler(buckets)
    for step, value in zip(x, y, strict=True):
        series.add(step, value)
    kept_x, kept_y = series.points()
    return kept_x.tolist(), kept_y.tolist(), series.gaps()


def extremes(bucket: Ints, y: Floats) -> Ints:
    """Positions of the first lowest and the last highest value of each bucket, in order.

    Buckets never fall.
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
    """The same, with one row for each bucket and kind."""
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


def _count(bucket: Ints) -> int:
    """How many different buckets there are; they never fall."""
    return int(np.count_nonzero(np.diff(bucket))) + 1 if len(bucket) else 0


def join_series(one: Downsampler | None, other: Downsampler | None, points: int) -> Downsampler:
    """One series from two that lie next to each other; of a missing one, nothing."""
    if one is None or other is None:
        return one or other or Downsampler(points)
    return one.followed_by(other)
