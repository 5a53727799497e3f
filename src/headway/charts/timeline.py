"""One axis for a run that may go back.

A run that is resumed or rolled back repeats its steps, and a chart needs numbers that only rise. So
x is the step as long as steps rise; where they fall, x goes on by one, and a `Turn` says so. On a
page x is shown as the step it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FARTHEST = 1 << 52
"""Beyond this neither a chart nor a browser can count."""
MOST_TURNS = 2000


@dataclass(frozen=True, slots=True)
class Turn:
    """From `x` on, the step is x − offset."""

    x: int
    offset: int
    segment: int
    seq: int


class Timeline:
    """Gives every record its x."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.end = 0
        """The largest x so far."""
        self._offset = 0

    def x(self, segment: int, seq: int, step: int) -> int | None:
        """Where a record of the stream stands; None for one that cannot be drawn."""
        x = step + self._offset
        if not 0 <= x <= FARTHEST:
            return None
        if x < self.end:
            if len(self.turns) >= MOST_TURNS:
                return None
            self._offset += self.end + 1 - x
            x = self.end + 1
            self.turns.append(Turn(x, self._offset, segment, seq))
        self.end = x
        return x

    def xs(self, segment: Ints, seq: Ints, step: Ints) -> Ints:
        """The same for many records that follow each other; −1 for one that cannot be drawn."""
        found = np.empty(len(step), np.int64)
        falls = np.flatnonzero(np.diff(step) < 0) + 1
        for begin, end in zip([0, *falls.tolist()], [*falls.tolist(), len(step)], strict=True):
            if begin == end:
                continue
            first = self.x(int(segment[begin]), int(seq[begin]), int(step[begin]))
            found[begin] = -1 if first is None else first
            last = int(step[end - 1]) + self._offset
            if first is not None and last <= FARTHEST:
                found[begin:end] = step[begin:end] + self._offset
                self.end = last
                continue
            for at in range(begin + 1, end):
                x = self.x(int(segment[at]), int(seq[at]), int(step[at]))
                found[at] = -1 if x is None else x
        return found

    def place(self, order: tuple[int, int], step: int) -> int:
        """Where a step stands that was named later: after the last turn before that order."""
        return step + offset_at(self.turns, order)


def offset_at(turns: Sequence[Turn], order: tuple[int, int]) -> int:
    """What has to be added to a step of that order."""
    offset = 0
    for turn in turns:
        if (turn.segment, turn.seq) > order:
            break
        offset = turn.offset
    return offset


def offsets(turns: Sequence[Turn], order: Ints, bits: int) -> Ints:
    """The same for many records: `order` is the segment, shifted by `bits`, plus seq."""
    begins = np.asarray([(turn.segment << bits) + turn.seq for turn in turns], np.int64)
    added = np.asarray([0, *(turn.offset for turn in turns)], np.int64)
    return added[np.searchsorted(begins, order, side="right")]
