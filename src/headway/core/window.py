"""Robust statistics of a run's own past: recent values, a downsampled history, the best level."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from math import isfinite
from operator import sub
from statistics import median, median_low
from typing import Any

from headway.core.state import register_state_class

# One NaN breaks a rule that averages. A window never contains a non-finite value, uses medians, and
# its owner adds only values that were not flagged.

MAD_TO_SIGMA = 1.4826
"""Factor from the median absolute deviation of a normal distribution to its standard deviation."""


@register_state_class
class Window:
    """The last `size` values, with their median and spread."""

    __slots__ = ("_recent", "_sorted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, value: float) -> bool:
        """Add a value and drop the oldest. False, without a change, if it is not finite."""
        if not isfinite(value):
            return False
        recent, ordered = self._recent, self._sorted
        recent.append(value)
        insort(ordered, value)
        if len(recent) > self.size:
            del ordered[bisect_left(ordered, recent.popleft())]
        return True

    def clear(self) -> None:
        """Remove all values."""
        self._recent.clear()
        self._sorted.clear()

    @property
    def full(self) -> bool:
        """Whether the next value drops the oldest."""
        return len(self._sorted) >= self.size

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return list(self._recent)

    def oldest_mean(self, count: int) -> float:
        """The mean of the oldest `count` values. NaN when there are fewer."""
        if len(self._recent) < count:
            return math.nan
        return sum(islice(self._recent, count)) / count

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
        """The lower median, which is always one of the values. NaN when empty."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else math.nan

    def median_of_last(self, count: int) -> float:
        """The lower median of the last `count` values. NaN when empty."""
        last = sorted(islice(reversed(self._recent), count))
        return last[(len(last) - 1) // 2] if last else math.nan

    def quantile(self, share: float) -> float:
        """The value below or at which `share` of the window is. NaN when empty."""
        if not self._sorted:
            return math.nan
        return self._sorted[round(share * (len(self._sorted) - 1))]

    def sigma(self, *, log: bool) -> float:
        """Robust standard deviation, of the values or of their logarithms (all must be > 0)."""
        if not self._sorted:
            return math.nan
        middle = self.median
        values: Iterable[float] = self._sorted
        if log:
            values, middle = map(math.log, values), math.log(middle)
        distances: list[float] = sorted(map(abs, map(sub, values, repeat(middle))))
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


@register_state_class
class DownsampledSeries:
    """A whole run in at most `size` points: when full, every second point is dropped.

    For long trends (does memory ever stop growing?), where a recent window is too short and the
    full history too long.
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
        """Add a point; True if it was kept."""
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
        """Remove all values."""
        self.points.clear()
        self.stride = 1
        self._count = 0

    def to_state(self) -> Any:
        return [self.size, self.stride, self._count, list(self.points)]

    @classmethod
    def from_state(cls, state: Any) -> DownsampledSeries:
        series = cls(state[0])
        series.stride, series._count, series.points = state[1], state[2], list(state[3])
        return series


# The best level of a loss so far, and which losses still belong to it.

NARROWEST = 1.25
"""Smallest factor of the band around a positive level; a smaller fall is no progress."""


def detrended_sigma(values: Sequence[float]) -> float:
    """Robust standard deviation around the trend, from the differences of neighbours."""
    # By functions of the interpreter: at many steps, and a loop runs a dozen opcodes per value.
    moves: list[float] = [*map(sub, islice(values, 1, None), values)]
    if not moves:
        return 0.0
    usual = median(moves)
    spread: float = median(map(abs, map(sub, moves, repeat(usual))))
    return MAD_TO_SIGMA / math.sqrt(2) * spread


def log_sigma(values: Sequence[float]) -> float:
    """The same of the logarithms; all values must be > 0."""
    return detrended_sigma([*map(math.log, values)])


def drift_sigma(values: Sequence[float]) -> float:
    """Drift of the level: robust deviation of medians of five values from their linear trend."""
    levels = [median(values[at : at + 5]) for at in range(0, len(values), 5)]
    third = max(len(levels) // 3, 1)
    begin, end = median(levels[:third]), median(levels[-third:])
    slope = (end - begin) / max(len(levels) - third, 1)
    middle = (third - 1) / 2
    distances = (abs(level - begin - slope * (at - middle)) for at, level in enumerate(levels))
    return MAD_TO_SIGMA * median(distances)


@register_state_class
class BestLevel:
    """The lowest median of `size` losses, with a band of `sigmas` robust deviations around it."""

    __slots__ = (
        "_recent",
        "band",
        "first",
        "level",
        "progressed",
        "seen",
        "sigmas",
        "step",
    )

    def __init__(self, size: int = 20, sigmas: float = 6.0) -> None:
        self.sigmas = sigmas
        self.seen = 0
        self._recent = Window(size)
        self.first = math.inf
        """The level of the first losses."""
        self.level = math.inf
        self.band = math.inf
        """The largest loss that belongs to the level; infinite until there is a level."""
        self.progressed = False
        """Whether the level is better than the first one by more than noise."""
        self.step = 0
        """The step at which the level was reached."""

    @property
    def progress(self) -> float:
        """How far the level is below the first one."""
        return self.first - self.level

    def learn(self, step: int, loss: float) -> None:
        """Add a loss within the band."""
        self.seen += 1
        recent = self._recent
        recent.push(loss)
        # In a log of epochs there are few values: the first one is the start, and each one counts.
        few = max(recent.size // 4, 1)
        if self.seen == few:
            self.first = recent.median
        # Not for every loss: the spread costs a sort, and early in a run each median is a new best.
        if self.seen % few == 0 and self.seen >= recent.size // 2 and recent.median < self.level:
            self.step = step
            self._refer_to(recent.values)

    def restart(self, first: float, losses: Sequence[float]) -> None:
        """Restart from these losses, because the run starts to learn again."""
        self.first = first
        self._recent.clear()
        for loss in losses:
            self._recent.push(loss)
        self._refer_to(losses)

    def _refer_to(self, losses: Sequence[float]) -> None:
        self.level = median_low(losses)
        if min(losses) > 0:
            spread = log_sigma(losses)
            reach = max(self.sigmas * spread, math.log(NARROWEST))
            self.band = self.level * math.exp(min(reach, 700))
            real = max(2 * spread, math.log(NARROWEST))
            self.progressed = self.first > self.level * math.exp(min(real, 700))
        else:
            spread = detrended_sigma(losses)
            self.band = self.level + max(self.sigmas * spread, self.progress / 4)
            self.progressed = self.progress > 2 * spread
        if self.progressed:
            # A loss that lost half of the progress is not at the best level, whatever the noise.
            self.band = min(self.band, self.level + self.progress / 2)

    def to_state(self) -> Any:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_state(cls, state: Any) -> BestLevel:
        best = cls()
        for name in cls.__slots__:
            setattr(best, name, state[name])
        return best
