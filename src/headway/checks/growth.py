"""Detects growth that does not level off.

A cache that fills, an allocator that warms up, a jump at the first validation and a saw-tooth all
rise for a while. A leak rises from one end of the record to the other, at a constant rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from headway.core.state import register_state_class
from headway.core.window import DownsampledSeries, detrended_sigma

BLOCKS = 8
"""Number of blocks whose medians are judged, so that one outlier is not a trend."""
LEAST = 3 * BLOCKS
"""Smallest number of points that is judged."""
FEWEST, UP = 8, 0.85
"""Smallest number of rows of a log, and the share of them that must be above the one before."""
STRONG = 1.5
"""Ratio of the levels from which a third of the time is enough."""
EVERY = 4
"""Judging the whole series takes about 100 µs, so it is done at every fourth point."""
SLACK = 0.4
"""Share of the mean rise that every block must add: one jump is not a trend."""
UNDIMINISHED = 0.85
"""Share of the earlier rise that the later blocks must add; otherwise it levels off."""
BLUR = 0.2
"""Largest uncertainty of the medians relative to the mean rise; above it, noise decides."""


@dataclass(frozen=True)
class GrowthRule:
    """The conditions under which a rise is reported."""

    ratio: float = 1.1
    """Smallest ratio of the new level to the old."""
    amount: float = 0.0
    """Smallest difference between the new level and the old."""
    grace: int = 50
    """First steps that are ignored: caches fill, optimizer state is created."""
    horizon: int = 300
    """Smallest number of steps of a trend."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A rise from `before` at step `start` to `after` at step `end`."""

    start: float
    end: float
    before: float
    after: float

    @property
    def steps(self) -> int:
        """Duration in steps."""
        return max(int(self.end - self.start), 1)

    @property
    def per_step(self) -> float:
        """The mean rise per step."""
        return (self.after - self.before) / self.steps


def steady_growth(points: Sequence[tuple[float, float]], rule: GrowthRule) -> Growth | None:
    """The growth of a series, or of its recent half or quarter, if it does not level off."""
    for part in (1, 2, 4):
        begin = len(points) - len(points) // part
        earlier, recent = points[:begin], points[begin:]
        if len(recent) < LEAST or recent[-1][0] - recent[0][0] < rule.horizon:
            return None
        growth = _undiminished(recent)
        if growth is None or (earlier and growth.per_step < _pace(earlier[-len(recent) :])):
            continue  # a curve that is levelling off looks straight in any short stretch
        # A saw-tooth returns to its earlier level; only a level that is new is growth.
        level = max([growth.before, *(value for _, value in earlier)])
        if growth.after >= level * rule.ratio and growth.after - level >= rule.amount:
            return growth
    return None


def scale_rule(per_label: int, rule: GrowthRule) -> GrowthRule:
    """The rule in units of the records, if these count epochs."""
    if per_label == 1:
        return rule
    return replace(rule, grace=rule.grace // per_label, horizon=rule.horizon // per_label)


def lasting_growth(
    earlier: Sequence[tuple[float, float]], recent: Sequence[tuple[float, float]], rule: GrowthRule
) -> Growth | None:
    """The growth of the last part of a log, up to its end."""
    if len(recent) < FEWEST:
        return None
    level = max([recent[0][1], *(value for _, value in earlier)])
    strong = recent[-1][1] >= STRONG * level
    least = rule.horizon / 3 if strong else rule.horizon
    if recent[-1][0] - recent[0][0] < least:
        return None
    few = len(recent) < LEAST
    growth = short_growth(recent, rule) if few else _undiminished(recent)
    if growth is None or (earlier and growth.per_step < _pace(earlier[-len(recent) :])):
        return None
    if growth.after < level * rule.ratio or growth.after - level < rule.amount:
        return None
    return growth


def short_growth(points: Sequence[tuple[float, float]], rule: GrowthRule) -> Growth | None:
    """The growth of a log of few rows, if nearly every one of them is above the one before."""
    values = [value for _, value in points]
    rises = [later - earlier for earlier, later in pairwise(values)]
    third = len(values) // 3
    parts = [median(part) for part in (values[:third], values[third:-third], values[-third:])]
    total = values[-1] - values[0]
    if sum(rise > 0 for rise in rises) < UP * len(rises) or max(rises) > total / 2:
        return None
    if parts[2] - parts[1] < 0.7 * (parts[1] - parts[0]):
        return None
    if values[-1] < values[0] * max(rule.ratio, 1.25) or total < rule.amount:
        return None
    return Growth(points[0][0], points[-1][0], values[0], values[-1])


def growth_onset(watch: GrowthWatch, growth: Growth) -> int:
    """The step of the last record that was not yet above the initial level."""
    points = watch.series.points
    level = growth.before
    earlier = [value for step, value in points if step <= growth.start]
    if earlier:
        level = min(level, median(earlier[:3]))
    margin = level + max((growth.after - level) / 50, 3 * _spread(points) if len(points) > 2 else 0)
    at = len(points) - 1
    while at and points[at][1] > margin:
        at -= 1
    if at <= max(len(points) // 12, 1) and watch.first is not None:
        return int(watch.first)  # it rose from the first record on
    return int(points[at][0])


def _pace(points: Sequence[tuple[float, float]]) -> float:
    before, after = (median(value for _, value in end) for end in (points[:3], points[-3:]))
    return (after - before) / max(points[-1][0] - points[0][0], 1)


def _undiminished(points: Sequence[tuple[float, float]]) -> Growth | None:
    edges = [len(points) * block // BLOCKS for block in range(BLOCKS + 1)]
    blocks = [points[start:end] for start, end in pairwise(edges)]
    levels = [median(value for _, value in block) for block in blocks]
    rises = [later - earlier for earlier, later in pairwise(levels)]
    mean = sum(rises) / len(rises)
    half = len(rises) // 2
    if (
        min(rises) <= 0
        or min(rises) < SLACK * mean
        or sum(rises[-half:]) < UNDIMINISHED * sum(rises[:half])
        or _spread(points) > BLUR * mean * math.sqrt(len(points) / BLOCKS)
    ):
        return None
    start, end = (median(step for step, _ in block) for block in (blocks[0], blocks[-1]))
    return Growth(start, end, levels[0], levels[-1])


def _spread(points: Sequence[tuple[float, float]]) -> float:
    return detrended_sigma([value for _, value in points])


@register_state_class
class GrowthWatch:
    """Watches one series; reports its growth once, until the level has fallen again."""

    __slots__ = ("first", "reset_below", "series")

    def __init__(self, size: int = 256) -> None:
        self.first: float | None = None
        self.series = DownsampledSeries(size)
        self.reset_below: float | None = None
        """Half of the reported rise: a value below this level ends the episode."""

    def note(self, step: float, value: float, rule: GrowthRule) -> None:
        """Add a value of a log that is judged at its end."""
        if self.first is None:
            self.first = step
        if step - self.first >= rule.grace:
            self.series.push(step, value)

    def verdict(self, rule: GrowthRule) -> Growth | None:
        """The growth of the whole series, however few its points are."""
        points = self.series.points
        for tenth in range(9):  # it may have started anywhere
            begin = len(points) * tenth // 10
            growth = lasting_growth(points[:begin], points[begin:], rule)
            if growth is not None:
                return growth
        return None

    def admit(self, step: float, value: float, rule: GrowthRule) -> Growth | None:
        """Add a value; returns the growth that it completes, if any."""
        if self.reset_below is not None and value < self.reset_below:
            self.restart()
        if self.first is None:
            self.first = step
        if step - self.first < rule.grace or not self.series.push(step, value):
            return None
        points = self.series.points
        if self.reset_below is not None or len(points) % EVERY:
            return None
        # Most runs are flat: exclude them without judging the whole series.
        if value < rule.ratio * min(level for _, level in points[:3]):
            return None
        growth = steady_growth(points, rule)
        if growth is not None:
            self.reset_below = (growth.before + growth.after) / 2
        return growth

    def restart(self) -> None:
        """Reset: a new process, or the memory has been released."""
        self.first = None
        self.series.clear()
        self.reset_below = None

    def to_state(self) -> Any:
        return [self.first, self.series, self.reset_below]

    @classmethod
    def from_state(cls, state: Any) -> GrowthWatch:
        watch = cls()
        watch.first, watch.series, watch.reset_below = state
        return watch
