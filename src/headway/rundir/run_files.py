"""Reads the files of a run directory while they may still grow: the header, new whole lines, lines
between two offsets.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import Header
from headway.errors import UnreadableInput

# Opening a file that is one: what waits in its place, a pipe, would never end.

Opener = Callable[[Path], BinaryIO]
"""Opens a file for reading. Raises an OSError for what is not there, or may not be read."""


def open_regular_file(path: Path) -> BinaryIO:
    """The file; `FileNotFoundError` where there is something else."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return open(path, "rb")


# The whole lines of a file that may still grow, piece by piece.

# Only whole lines are taken: the last one may be half written, and is left for the next time. A
# line that is longer than any record is passed over without being held in memory. A file that
# became shorter, or is another one under the same name, is noticed.

AT_ONCE = 1 << 18
"""Bytes taken at one reading."""
LONGEST_LINE = 1 << 26
"""A longer line is no record of ours."""
HEAD = 64
"""Bytes at the beginning of a file by which it is known again."""
SETTLED_SECONDS = 1.0
"""Seconds without a write after which the time of a write tells whether there was another."""

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Lines that lie next to each other in a file."""

    start: int
    end: int
    lines: list[bytes]
    passed_over: int = 0
    """Lines that were too long."""


@dataclass
class FileTail:
    """Reads on from where the last reading ended. Never raises: a file may not be there yet."""

    path: Path
    opener: Opener = open_regular_file
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

    def read(self, most: int = AT_ONCE) -> LineBlock | None:
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
        still = piece is None and time.time() - status.st_mtime > SETTLED_SECONDS
        self._quiet = _stamp(status) if still else None
        return piece

    def _next(self, file: BinaryIO, most: int) -> LineBlock | None:
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

    def _take(self, data: bytes, lines: bytes, passed_over: int = 0) -> LineBlock:
        start = self.place
        self.place += len(data)
        return LineBlock(start, self.place, lines.split(b"\n")[:-1], passed_over)

    def _go_on(self, data: bytes) -> LineBlock | None:
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


# Lines from some places of a file that may still grow, without reading the rest of it.

FARTHEST_LINE = 1 << 18
"""How far the next line is looked for, where only a sample is wanted."""


def lines_between(path: Path, start: int, end: int) -> list[bytes]:
    """The lines in a stretch of a file that begins and ends with a line."""
    try:
        with open_regular_file(path) as file:
            file.seek(start)
            return file.read(max(end - start, 0)).split(b"\n")[:-1]
    except OSError:
        return []


def last_lines(path: Path, length: int, opener: Opener = open_regular_file) -> list[bytes]:
    """The lines at the end of a file; of the first, and of the last, maybe a part."""
    try:
        with opener(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - length, 0))
            return file.read(length).splitlines()
    except OSError:
        return []


def sample_lines(path: Path, places: int, length: int) -> list[bytes]:
    """Lines from so many places at equal distances, in order; of the last at each, maybe a part."""
    try:
        with open_regular_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= places * length:
                return file.read(size).split(b"\n")[:-1]
            lines: list[bytes] = []
            before = 0
            for number in range(places):
                at = max(number * (size - length) // max(places - 1, 1), before)
                file.seek(at)
                if at:
                    at += len(file.readline(FARTHEST_LINE))  # to where the next one begins
                data = file.read(length)
                lines += data.split(b"\n")
                before = at + len(data)
            return lines
    except OSError:
        return []


# What a run directory says of itself: its `run.json`.

LONGEST_HEADER = 1 << 26


def read_header(run: Path, opener: Opener = open_regular_file, *, rank: int = 0) -> Header | None:
    """None while it has not been written. Raises `UnreadableInput` where it is something else."""
    path = run / "run.json"
    try:
        with opener(path) as file:
            # As much memory is set aside as is asked for, so no more is asked for than there is.
            size = min(os.fstat(file.fileno()).st_size, LONGEST_HEADER)
            record = from_json(json.loads(file.read(size)), rank=rank)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    except NO_RECORD as error:
        raise UnreadableInput(f"{path} is not a run header: {error}") from error
    if not isinstance(record, Header):
        raise UnreadableInput(f"{path} is not a run header")
    return record
