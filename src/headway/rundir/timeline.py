"""An increasing x axis for a run that may go back to earlier steps, and an index from that axis to
byte ranges of a file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_INDEXED_RANGES = 4096
"""When there are more ranges, each two are merged."""


@dataclass(frozen=True, slots=True)
class IndexedRange:
    """Bytes `start` to `end` of the file contain x `first` to `last`."""

    start: int
    end: int
    first: int
    last: int
    rows: int


class StepIndex:
    """A sparse index of bounded size: which bytes of a file contain which x."""

    def __init__(self, most: int = MAX_INDEXED_RANGES) -> None:
        self._most = most
        self._parts: list[IndexedRange] = []
        self._size = 1
        """Added ranges per kept range."""
        self._inside = 0

    def add(self, start: int, end: int, first: int, last: int, rows: int) -> None:
        """Add a range after the last one."""
        if self._parts and self._inside < self._size:
            before = self._parts.pop()
            start, first, rows = before.start, before.first, rows + before.rows
        else:
            self._inside = 0
        self._parts.append(IndexedRange(start, end, first, last, rows))
        self._inside += 1
        if len(self._parts) > self._most:
            self._halve()

    def between(self, first: int, last: int) -> list[IndexedRange]:
        """The ranges that may overlap with a part of the axis."""
        begin = bisect_left(self._parts, first, key=lambda part: part.last)
        found = []
        for part in self._parts[begin:]:
            if part.first > last:
                break
            found.append(part)
        return found

    def _halve(self) -> None:
        pairs = zip(self._parts[::2], [*self._parts[1::2], None], strict=False)
        self._parts = [
            one
            if two is None
            else IndexedRange(one.start, two.end, one.first, two.last, one.rows + two.rows)
            for one, two in pairs
        ]
        self._size *= 2
        self._inside = self._size


# A run that is resumed or rolled back repeats steps, and a chart needs increasing x. So x equals
# the step while steps increase; where they fall, x continues by one, and an `AxisJump` records the
# offset. Pages show the step for each x.

Ints = NDArray[np.int64]

MAX_X = 1 << 52
"""JavaScript numbers are exact up to 2**53."""
MAX_AXIS_JUMPS = 2000


@dataclass(frozen=True, slots=True)
class AxisJump:
    """From `x` on, the step is x − offset."""

    x: int
    offset: int
    segment: int
    seq: int


class Timeline:
    """Computes the x of every record."""

    def __init__(self) -> None:
        self.jumps: list[AxisJump] = []
        self.end = 0
        """The largest x so far."""
        self._offset = 0

    def x(self, segment: int, seq: int, step: int) -> int | None:
        """The x of the next record; None if it cannot be drawn."""
        x = step + self._offset
        if not 0 <= x <= MAX_X:
            return None
        if x < self.end:
            if len(self.jumps) >= MAX_AXIS_JUMPS:
                return None
            self._offset += self.end + 1 - x
            x = self.end + 1
            self.jumps.append(AxisJump(x, self._offset, segment, seq))
        self.end = x
        return x

    def xs(self, segment: Ints, seq: Ints, step: Ints) -> Ints:
        """The x of many consecutive records; −1 for one that cannot be drawn."""
        found = np.empty(len(step), np.int64)
        falls = np.flatnonzero(np.diff(step) < 0) + 1
        for begin, end in zip([0, *falls.tolist()], [*falls.tolist(), len(step)], strict=True):
            if begin == end:
                continue
            first = self.x(int(segment[begin]), int(seq[begin]), int(step[begin]))
            found[begin] = -1 if first is None else first
            last = int(step[end - 1]) + self._offset
            if first is not None and last <= MAX_X:
                found[begin:end] = step[begin:end] + self._offset
                self.end = last
                continue
            for at in range(begin + 1, end):
                x = self.x(int(segment[at]), int(seq[at]), int(step[at]))
                found[at] = -1 if x is None else x
        return found

    def place(self, order: tuple[int, int], step: int) -> int:
        """The x of an earlier step, by the last jump before its order."""
        return step + find_offset(self.jumps, order)


def find_offset(jumps: Sequence[AxisJump], order: tuple[int, int]) -> int:
    """What is added to a step with that order to get its x."""
    offset = 0
    for jump in jumps:
        if (jump.segment, jump.seq) > order:
            break
        offset = jump.offset
    return offset


def find_step(jumps: Sequence[AxisJump], x: int) -> int:
    """The step at an x."""
    offset = 0
    for jump in jumps:
        if jump.x > x:
            break
        offset = jump.offset
    return x - offset


def find_offsets(jumps: Sequence[AxisJump], order: Ints, bits: int) -> Ints:
    """The same for many records: `order` is the segment, shifted by `bits`, plus seq."""
    begins = np.asarray([(jump.segment << bits) + jump.seq for jump in jumps], np.int64)
    added = np.asarray([0, *(jump.offset for jump in jumps)], np.int64)
    return added[np.searchsorted(begins, order, side="right")]
