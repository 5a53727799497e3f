"""A whole run in a few points, all of them for equally many steps: how it went from its beginning.

Windows of the latest steps forget how a run began, and histories that thin out the past compare
with something else each time. Here the oldest tenth is always as plain as the latest.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from headway.core.moment import Moment
from headway.core.state import remember

MOST = 64
"""Points that are kept; when full, two become one. At least half as many are there."""
PARTS = 8

Era = tuple[Moment, float, float]
"""Where it ended, and the medians of two numbers over it."""


@remember
@dataclass
class Eras:
    """The points, and what the next one is being made of."""

    points: list[Era] = field(default_factory=list)
    waiting: list[Era] = field(default_factory=list)
    each: int = 1
    """Medians that a point stands for."""

    def add(self, era: Era) -> bool:
        """One more median; whether it completed a point."""
        self.waiting.append(era)
        if len(self.waiting) < self.each:
            return False
        self.points.append(_joined(self.waiting))
        self.waiting.clear()
        if len(self.points) >= MOST:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [_joined(list(pair)) for pair in pairs]
            self.each *= 2
        return True

    def parts(self) -> list[list[Era]]:
        """The run in eighths, the first one first."""
        count = len(self.points)
        bounds = [count * part // PARTS for part in range(PARTS + 1)]
        return [self.points[a:b] for a, b in pairwise(bounds)]

    def to_state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Any) -> Eras:
        return cls(**state)


def _joined(eras: list[Era]) -> Era:
    """One for several; what is not known (NaN) of one of them is not known of all."""
    ends, firsts, seconds = zip(*eras, strict=True)
    unknown = any(math.isnan(value) for value in seconds)
    return ends[-1], median(firsts), math.nan if unknown else median(seconds)
