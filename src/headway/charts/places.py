"""Which part of a file tells which steps: a sparse index, of bounded size."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

MOST = 4096
"""Parts that are told apart; when there are more, each two become one."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes from `start` to `end` tell the places `first` to `last` of the axis."""

    start: int
    end: int
    first: int
    last: int
    rows: int


class Places:
    """The parts of a file, in order."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._parts: list[Part] = []
        self._size = 1
        """Parts as they came in one of those kept."""
        self._inside = 0

    def add(self, start: int, end: int, first: int, last: int, rows: int) -> None:
        """One more part, after those before."""
        if self._parts and self._inside < self._size:
            before = self._parts.pop()
            start, first, rows = before.start, before.first, rows + before.rows
        else:
            self._inside = 0
        self._parts.append(Part(start, end, first, last, rows))
        self._inside += 1
        if len(self._parts) > self._most:
            self._halve()

    def between(self, first: int, last: int) -> list[Part]:
        """The parts in which there may be something of a stretch."""
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
            else Part(one.start, two.end, one.first, two.last, one.rows + two.rows)
            for one, two in pairs
        ]
        self._size *= 2
        self._inside = self._size
