"""A long series in bounded memory, with nothing hidden that a reader looks for.

The x axis is cut into buckets whose width is a power of two. Of each bucket the lowest and the
highest value stay, at the very steps they came from, so that no spike is ever averaged away; and of
every kind of non-finite value the first step, the last and how many there were. When there are too
many buckets the width doubles. Because a minimum of minima is the minimum, the outcome is the same
however the points arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BUCKETS = 1500
"""Wider than a chart on any screen has pixels to tell apart."""
AT_ONCE = 1 << 14
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
        self._kept_x: Ints = np.empty(0, np.int64)
        self._kept_y: Floats = np.empty(0, np.float64)
        self._gaps: Ints = np.empty((0, 4), np.int64)
        """Rows of kind, first, last, count; in the order of x."""

    def add(self, x: int, y: float) -> None:
        """One more point."""
        self._x.append(x)
        self._y.append(y)
        self.seen += 1
        if len(self._x) >= AT_ONCE:
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

    def _fold(self) -> None:
        if not self._x:
            return
        x, y = np.asarray(self._x, np.int64), np.asarray(self._y, np.float64)
        self._x, self._y = [], []
        finite = np.isfinite(y)
        if not finite.all():
            self._take_gaps(x[~finite], y[~finite])
        self._kept_x = np.concatenate([self._kept_x, x[finite]])
        self._kept_y = np.concatenate([self._kept_y, y[finite]])
        self._widen()

    def between(self, low: int, high: int, buckets: int) -> Downsampler:
        """The part from one x to another, in at most so many buckets."""
        x, y = self.points()
        part = Downsampler(buckets)
        inside = (x >= low) & (x <= high)
        part.width = self.width
        part._kept_x, part._kept_y = x[inside], y[inside]
        part._gaps = self._gaps[(self._gaps[:, 2] >= low) & (self._gaps[:, 1] <= high)]
        part._widen()
        return part

    def _widen(self) -> None:
        """Buckets as wide as they have to be, and of each what is shown."""
        while _count(self._kept_x // self.width) > self.buckets:
            self.width *= 2
        while _count(self._gaps[:, 1] // self.width) > self.buckets:
            self.width *= 2
        kept = extremes(self._kept_x // self.width, self._kept_y)
        self._kept_x, self._kept_y = self._kept_x[kept], self._kept_y[kept]
        self._gaps = _merged(self._gaps, self.width)

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
    """Positions of the first lowest and the last highest value of each bucket, in order."""
    if not len(y):
        return np.empty(0, np.int64)
    order = np.lexsort((np.arange(len(y)), y, bucket))
    starts = np.flatnonzero(np.r_[True, np.diff(bucket[order]) != 0])
    ends = np.r_[starts[1:], len(y)] - 1
    return np.unique(np.r_[order[starts], order[ends]])


def _merged(gaps: Ints, width: int) -> Ints:
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
