"""Paths and URLs of runs, and files that may still grow: the header, new whole lines, lines between
two offsets."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeGuard

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import Header
from headway.errors import UnreadableInput

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")

Opener = Callable[[Path], BinaryIO]
"""Opens a file for reading. Raises an OSError if it does not exist or must not be read."""


def is_url(path: str | os.PathLike[str]) -> TypeGuard[str]:
    """Whether this is a URL of a store, not a local file. `Path` drops a slash of `//`."""
    return isinstance(path, str) and _URL.match(path) is not None and not path.startswith("file://")


def local_path(path: str | os.PathLike[str]) -> Path:
    """A local path, also from a file:// URL."""
    return Path(str(path).removeprefix("file://"))


def input_path(path: str | os.PathLike[str]) -> Path:
    """The same, of something to read. Raises UnreadableInput for what no file can be called."""
    text = str(local_path(path))
    if "\0" in text or len(text) > 4095 or max(map(len, os.fsencode(text).split(b"/"))) > 255:
        raise UnreadableInput(f"{text[:99]!r} is not a path: it is too long or has a zero byte")
    return Path(text)


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file. Raises FileNotFoundError for a pipe, which might never end."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return open(path, "rb")


_between = threading.local()


@contextmanager
def pausing(pause: Callable[[], object]) -> Iterator[None]:
    """Call `pause` before every part of a file that this thread reads, so that it can give way."""
    _between.pause = pause
    try:
        yield
    finally:
        del _between.pause


# Whole lines only: the last line may be half written and is left for the next read. A line longer
# than any record is skipped without being kept in memory.

AT_ONCE = 1 << 18
"""Bytes read at once."""
LONGEST_LINE = 1 << 26
"""A longer line is no record."""
HEAD = 64
"""Bytes at the start of a file that identify it."""
SETTLED_SECONDS = 1.0
"""Seconds since the last write after which an unchanged mtime means an unchanged file."""

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a file."""

    start: int
    end: int
    lines: list[bytes]
    passed_over: int = 0
    """Lines that were skipped because they are too long."""


@dataclass
class FileTail:
    """Reads a file from where the last read ended. Never raises: the file may not exist yet."""

    path: Path
    opener: Opener = open_regular_file
    place: int = 0
    """Offset of the next line."""
    size: int = 0
    """Size of the file at the last read."""
    renewed: int = 0
    """How often the file was replaced or truncated; data read before is then invalid."""
    _known: tuple[int, int, bytes] | None = field(default=None, repr=False)
    _inside: bool = field(default=False, repr=False)
    """Whether `place` is inside a line that is too long."""
    _quiet: Stamp | None = field(default=None, repr=False)
    """The file's stamp when it was last found unchanged."""

    def read(self, most: int = AT_ONCE) -> LineBlock | None:
        """The next whole lines; None if there are none yet."""
        pause = getattr(_between, "pause", None)
        if pause is not None:
            pause()
        try:
            # Most reads find nothing new, which a stat shows without opening the file.
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
            if not more:  # half written
                break
            data += more
        end = data.rfind(b"\n") + 1
        return self._take(data[:end], data[:end]) if end else None

    def skip(self) -> None:
        """Continue from the end, as if everything had been read."""
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
        """The rest of a line that is skipped."""
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
        # Only bytes before `place` are final and identify the file.
        self._known = (status.st_dev, status.st_ino, head[: self.place])


def _stamp(status: os.stat_result) -> Stamp:
    """Changes when the file is written to or replaced."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


FARTHEST_LINE = 1 << 18
"""Bytes in which `sample_lines` searches for the next line."""


def lines_between(
    path: Path, start: int, end: int, opener: Opener = open_regular_file
) -> list[bytes]:
    """The lines between two offsets that are line starts."""
    try:
        with opener(path) as file:
            file.seek(start)
            return file.read(max(end - start, 0)).split(b"\n")[:-1]
    except OSError:
        return []


def last_lines(path: Path, length: int, opener: Opener = open_regular_file) -> list[bytes]:
    """The lines in the last `length` bytes; the first and the last may be incomplete."""
    try:
        with opener(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - length, 0))
            return file.read(length).splitlines()
    except OSError:
        return []


def sample_lines(
    path: Path, places: int, length: int, opener: Opener = open_regular_file
) -> list[bytes]:
    """Lines from evenly spaced places, in order; the last one at each may be incomplete."""
    try:
        with opener(path) as file:
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
                    at += len(file.readline(FARTHEST_LINE))  # skip to the next line
                data = file.read(length)
                lines += data.split(b"\n")
                before = at + len(data)
            return lines
    except OSError:
        return []


LONGEST_HEADER = 1 << 26


def read_header(run: Path, opener: Opener = open_regular_file, *, rank: int = 0) -> Header | None:
    """The header in run.json; None before it is written. Raises `UnreadableInput` if it is none."""
    path = run / "run.json"
    try:
        with opener(path) as file:
            # read(n) allocates n bytes up front, so n must not exceed the file.
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
