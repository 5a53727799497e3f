"""The run's own recent past, kept so that no single bad number can spoil it.

Every known spike rule that averages is blinded or jammed by one NaN. A window here never admits
a non-finite value, uses medians, and is fed by its owner only with values that were not flagged.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from itertools import islice
from typing import Any

from headway.core.state import remember

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""


@remember
class Window:
    """The last `size` admitted values, with their median and spread."""

    __slots__ = ("_recent", "_sorted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, value: float) -> bool:
        """Admit a value and let the oldest go. False, and nothing done, if it is not finite."""
        if not math.isfinite(value):
            return False
        self._recent.append(value)
        insort(self._sorted, value)
        if len(self._recent) > self.size:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._recent.clear()
        self._sorted.clear()

    @property
    def full(self) -> bool:
        """Whether a further value would push one out."""
        return len(self._sorted) >= self.size

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return list(self._recent)

    @property
    def low(self) -> float:
        """The smallest value; NaN when empty."""
        return self._sorted[0] if self._sorted else math.nan

    @property
    def high(self) -> float:
        """The largest value; NaN when empty."""
        return self._sorted[-1] if self._sorted else math.nan

    @property
    def median(self) -> float:
        """The lower median: always a value that really occurred. NaN when empty."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else math.nan

    def median_of_last(self, count: int) -> float:
        """The lower median of the last `count` values. NaN when empty."""
        last = sorted(islice(reversed(self._recent), count))
        return last[(len(last) - 1) // 2] if last else math.nan

    def quantile(self, share: float) -> float:
        """The value that `share` of the window lies at or below. NaN when empty."""
        if not self._sorted:
            return math.nan
        return self._sorted[round(share * (len(self._sorted) - 1))]

    def sigma(self, *, log: bool) -> float:
        """Robust standard deviation, of the values or of their logarithms (all must be > 0)."""
        if not self._sorted:
            return math.nan
        middle = self.median
        if log:
            origin = math.log(middle)
            distances = sorted(abs(math.log(value) - origin) for value in self._sorted)
        else:
            distances = sorted(abs(value - middle) for value in self._sorted)
        return MAD_TO_SIGMA * distances[(len(distances) - 1) // 2]

    def to_state(self) -> Any:
        return [self.size, list(self._recent)]

    @classmethod
    def from_state(cls, state: Any) -> Window:
        size, values = state
        window = cls(size)
        for value in values:
            window.push(value)
        return window


@remember
class Thinned:
    """A whole run in at most `size` points: when full, every second point is dropped.

    For questions about the long run (does memory ever stop growing?), where a recent window is
    too short and the full history too long.
    """

    __slots__ = ("_count", "points", "size", "stride")

    def __init__(self, size: int = 128) -> None:
        self.size = size
        self.stride = 1
        self.points: list[tuple[float, float]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self.points)

    def push(self, at: float, value: float) -> bool:
        """Offer a point; True when it was kept."""
        if not math.isfinite(value):
            return False
        self._count += 1
        if (self._count - 1) % self.stride:
            return False
        self.points.append((at, value))
        if len(self.points) >= self.size:
            self.points = self.points[::2]
            self.stride *= 2
        return True

    def clear(self) -> None:
        """Forget everything."""
        self.points.clear()
        self.stride = 1
        self._count = 0

    def to_state(self) -> Any:
        return [self.size, self.stride, self._count, list(self.points)]

    @classmethod
    def from_state(cls, state: Any) -> Thinned:
        series = cls(state[0])
        series.stride, series._count, series.points = state[1], state[2], list(state[3])
        return series
