"""The best level a loss has had so far, and which losses still belong to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median, median_low
from typing import Any

from headway.core.state import remember
from headway.core.window import MAD_TO_SIGMA, Window

NARROWEST = 1.25
"""The band around a positive level is at least this factor wide; a smaller fall is no progress."""


def scatter(values: Sequence[float]) -> float:
    """Robust standard deviation about the trend, from the differences of neighbours."""
    moves = [later - earlier for earlier, later in pairwise(values)]
    if not moves:
        return 0.0
    usual = median(moves)
    return MAD_TO_SIGMA / math.sqrt(2) * median(abs(move - usual) for move in moves)


def wander(values: Sequence[float]) -> float:
    """How far the level drifts to and fro: robust deviation of medians of five about their line."""
    levels = [median(values[at : at + 5]) for at in range(0, len(values), 5)]
    third = max(len(levels) // 3, 1)
    begin, end = median(levels[:third]), median(levels[-third:])
    slope = (end - begin) / max(len(levels) - third, 1)
    middle = (third - 1) / 2
    distances = (abs(level - begin - slope * (at - middle)) for at, level in enumerate(levels))
    return MAD_TO_SIGMA * median(distances)


@remember
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
        """The largest loss that belongs to the level; infinite until there is one."""
        self.progressed = False
        """Whether the level is better than the first one by more than noise."""
        self.step = 0
        """Where the level was reached."""

    @property
    def progress(self) -> float:
        """How far the level is below the first one."""
        return self.first - self.level

    def learn(self, step: int, loss: float) -> None:
        """Take a loss within the band."""
        self.seen += 1
        recent = self._recent
        recent.push(loss)
        # Few values only in a log of epochs: there the first one is the start, and each one counts.
        few = max(recent.size // 4, 1)
        if self.seen == few:
            self.first = recent.median
        # Every few losses only: the spread costs a sort, and early on each median is a new best.
        if self.seen % few == 0 and self.seen >= recent.size // 2 and recent.median < self.level:
            self.step = step
            self._refer_to(recent.values)

    def restart(self, first: float, losses: Sequence[float]) -> None:
        """Begin anew: the run learns again from a new start, and these are its best losses."""
        self.first = first
        self._recent.clear()
        for loss in losses:
            self._recent.push(loss)
        self._refer_to(losses)

    def _refer_to(self, losses: Sequence[float]) -> None:
        self.level = median_low(losses)
        if min(losses) > 0:
            spread = scatter([math.log(loss) for loss in losses])
            reach = max(self.sigmas * spread, math.log(NARROWEST))
            self.band = self.level * math.exp(min(reach, 700))
            real = max(2 * spread, math.log(NARROWEST))
            self.progressed = self.first > self.level * math.exp(min(real, 700))
        else:
            spread = scatter(losses)
            self.band = self.level + max(self.sigmas * spread, self.progress / 4)
            self.progressed = self.progress > 2 * spread
        if self.progressed:
            # However noisy: a loss that has lost half of the progress is not at the best level.
            self.band = min(self.band, self.level + self.progress / 2)

    def to_state(self) -> Any:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_state(cls, state: Any) -> BestLevel:
        best = cls()
        for name in cls.__slots__:
            setattr(best, name, state[name])
        return best
