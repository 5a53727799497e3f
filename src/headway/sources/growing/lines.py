"""The whole lines of a file that may still grow, piece by piece.

Only whole lines are taken: the last one may be half written, and is left for the next time. A line
that is longer than any record is passed over without being held in memory. A file that became
shorter, or is another one under the same name, is noticed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from headway.sources.plain_file import Opener, opened

AT_ONCE = 1 << 18
"""Bytes taken at one reading."""
LONGEST_LINE = 1 << 26
"""A longer line is no record of ours."""
HEAD = 64
"""Bytes at the beginning of a file by which it is known again."""
STILL = 1.0
"""Seconds without a write after which the time of a write tells whether there was another."""

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines that lie next to each other in a file."""

    start: int
    end: int
    lines: list[bytes]
    passed_over: int = 0
    """Lines that were too long."""


@dataclass
class Tail:
    """Reads on from where the last reading ended. Never raises: a file may not be there yet."""

    path: Path
    opener: Opener = opened
    place: int = 0
    """Where the next line begins."""
    size: int = 0
    """How long the file was at the last look."""
    renewed: int = 0
    """How often the file turned out to be another one: what was read of it is void."""
    _known: tuple[int, int, bytes] | None = field(default=None, repr=False)
    _inside: bool = field(default=False, repr=False)
    """Whether `place` lies within a line that is too long."""
    _quiet: Stamp | None = field(default=None, repr=False)
    """What the file was when it had rested for a while and there was nothing new in it."""

    def read(self, most: int = AT_ONCE) -> Piece | None:
        """The next whole lines; None where there are none for the moment."""
        try:
            # Most looks find what the last one found: that is seen without opening the file.
            if self._quiet is not None and _stamp(os.stat(self.path)) == self._quiet:
                return None
            with self.opener(self.path) as file:
                status = os.fstat(file.fileno())
                self._look(status, file.read(HEAD))
                piece = self._next(file, most)
        except OSError:
            return None
        still = piece is None and time.time() - status.st_mtime > STILL
        self._quiet = _stamp(status) if still else None
        return piece

    def _next(self, file: BinaryIO, most: int) -> Piece | None:
        file.seek(self.place)
        data = file.read(most)
        if self._inside:
            return self._go_on(data)
        while b"\n" not in data and len(data) >= most:
            if len(data) >= LONGEST_LINE:
                self._inside = True
                return self._take(data, b"", passed_over=1)
            more = file.read(len(data))
            if not more:  # it is half written
                break
            data += more
        end = data.rfind(b"\n") + 1
        return self._take(data[:end], data[:end]) if end else None

    def skip(self) -> None:
        """Go on from the end, as if all that is there had been read."""
        try:
            with self.opener(self.path) as file:
                self._look(os.fstat(file.fileno()), file.read(HEAD))
        except OSError:
            return
        self.place, self._inside = self.size, False

    def _take(self, data: bytes, lines: bytes, passed_over: int = 0) -> Piece:
        start = self.place
        self.place += len(data)
        return Piece(start, self.place, lines.split(b"\n")[:-1], passed_over)

    def _go_on(self, data: bytes) -> Piece | None:
        """The rest of a line that is passed over."""
        end = data.find(b"\n") + 1
        self._inside = not end
        return self._take(data[: end or len(data)], b"") if data else None

    def _look(self, status: os.stat_result, head: bytes) -> None:
        self.size = status.st_size
        known = self._known
        if known is not None:
            device, inode, start = known
            another = (device, inode) != (status.st_dev, status.st_ino)
            if another or self.size < self.place or not head.startswith(start):
                self.place, self._inside = 0, False
                self.renewed += 1
        # A beginning that was still being written says nothing about the rest of it.
        self._known = (status.st_dev, status.st_ino, head[: self.place])


def _stamp(status: os.stat_result) -> Stamp:
    """By what it is seen from outside whether a file was written to."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
