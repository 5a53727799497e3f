"""Lines of one shape, read without looking at them anew.

Most lines of a log are the same text around other numbers. What was found out of the first of them
(which number is the step, which the loss) holds for all: the text is the key, and the rest is a few
conversions. This is what makes a log of a million lines a matter of seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headway.sources.log.counters import ABSENT, LARGEST, LARGEST_EPOCH
from headway.sources.log.key_values import number, split

_MOST = 2000
"""Shapes that are kept; a log has a handful."""
NOWHERE = -1


class Shape(NamedTuple):
    """Which number of a line is what."""

    values: tuple[tuple[str, int, float], ...]
    """Name, where, and what one of it is worth."""
    epoch: int
    step: int
    total: int
    rank: str

    def read(self, parts: list[str]) -> tuple[dict[str, float], int, int, int]:
        """(values, epoch, count, total) of a line of this shape, split."""
        values = {name: number(parts[at]) * factor for name, at, factor in self.values}
        epoch = ABSENT if self.epoch < 0 else whole(number(parts[self.epoch]), LARGEST_EPOCH)
        count = ABSENT if self.step < 0 else whole(number(parts[self.step]), LARGEST)
        total = ABSENT if self.total < 0 else whole(number(parts[self.total]), LARGEST)
        return values, epoch, count, total


class Shapes:
    """The shapes of one log."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Shape] = {}

    def of(self, parts: list[str]) -> Shape | None:
        """The shape of a line that was split, if one like it was learned."""
        return self._known.get(tuple(parts[::2]))

    def learn(
        self,
        parts: list[str],
        rest: str,
        values: Iterable[tuple[str, int, float]],
        counters: tuple[int, int, int],
        rank: str = "",
    ) -> None:
        """Keep the shape of a line. Places count the numbers of `rest`, the end of the line."""
        before = len(parts) // 2 - len(split(rest)) // 2
        if before < 0 or len(self._known) >= _MOST or rank in parts[1 : 2 * before : 2]:
            return
        place = [2 * (at + before) + 1 if at >= 0 else NOWHERE for at in counters]
        moved = tuple((name, 2 * (at + before) + 1, factor) for name, at, factor in values)
        self._known[tuple(parts[::2])] = Shape(moved, place[0], place[1], place[2], rank)


def whole(value: float, largest: int) -> int:
    """A number as a counter; absent where it is negative, broken or too large."""
    return int(value) if 0 <= value <= largest and value == int(value) else ABSENT
