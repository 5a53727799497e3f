"""Reads the records of a run directory, as a whole or following it while it grows."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import Header, Record, merge_streams
from headway.errors import UnreadableInput
from headway.rundir.run_files import LONGEST_LINE, FileTail, Opener, open_regular_file, read_header

# The records of a run directory that grows, in order, a little at a time.

# Two files are followed, the steps of the first rank and the events. A file is never read ahead of
# the other by more than a piece, so that memory does not grow with the run. One file may be
# written before the other: a record that does not follow on what was given out is held back for a
# moment. A gap that stays (a torn line of a killed run) is waited for only a little.

STEPS, EVENTS = "steps.rank0.jsonl", "events.jsonl"
PIECE = 1 << 17
"""Bytes taken from a file at one reading."""
PATIENCE = 2.0
"""Seconds that a gap is waited for; a torn line never comes."""


class _FileFollower:
    """A file's records that wait to be given out."""

    def __init__(self, tail: FileTail) -> None:
        self.tail = tail
        self.ahead: deque[Record] = deque()
        self.torn = 0
        self.there = 0
        """Bytes there were when a gap was first seen."""
        self.passed = 0
        """Bytes in which no gap is waited for any more."""
        self._before = (0, 0)
        self._renewed = 0

    def fill(self) -> None:
        while not self.ahead:
            piece = self.tail.read(PIECE)
            if self.tail.renewed != self._renewed:
                self._renewed, self._before = self.tail.renewed, (0, 0)
                self.there = self.passed = 0
            if piece is None:
                return
            self.torn += piece.passed_over
            for line in piece.lines:
                if line and not line.isspace():
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            record = from_json(json.loads(line))
        except NO_RECORD:
            self.torn += 1
            return
        # Order is promised; a line out of order is damage, not data.
        if (record.segment, record.seq) < self._before:
            self.torn += 1
            return
        self._before = (record.segment, record.seq)
        self.ahead.append(record)

    def size(self) -> int:
        """Bytes there are now."""
        try:
            return self.tail.path.stat().st_size
        except OSError:
            return 0


class RunFollower:
    """Both files as one stream; a look may end at any record and go on later."""

    def __init__(
        self, path: Path, opener: Opener = open_regular_file, *, patience: float = PATIENCE
    ) -> None:
        self.path = path
        self._opener = opener
        self._patience = patience
        self._steps = _FileFollower(FileTail(path / STEPS, opener))
        self._events = _FileFollower(FileTail(path / EVENTS, opener))
        self._files = (self._steps, self._events)
        self._header: Header | None = None
        self._given: tuple[int, int] | None = None
        self._exhausted: tuple[int, int] | None = None
        """The sizes of the files when everything in them had been given out."""
        self._since: float | None = None
        """When a gap was first seen."""

    @property
    def torn(self) -> int:
        """Whole lines that held no record."""
        return self._steps.torn + self._events.torn

    @property
    def renewed(self) -> int:
        """How often a file turned out to be another one: it is read from its start."""
        return self._steps.tail.renewed + self._events.tail.renewed

    @property
    def waiting(self) -> bool:
        """Whether something that was read has not been given out yet."""
        return any(file.ahead for file in self._files)

    @property
    def read(self) -> tuple[int, int]:
        """Bytes given out, about, and bytes there are. A half written line is not waited for."""
        sizes = self._sizes()
        of = sum(sizes)
        if sizes == self._exhausted:
            return of, of
        done = sum(file.tail.place - PIECE * bool(file.ahead) for file in self._files)
        return min(max(done, 0), max(of - 1, 0)), of

    def skip(self) -> None:
        """Go on from the end, as if all that is there had been given out."""
        self._header = self._header or read_header(self.path, self._opener)
        for file in self._files:
            file.ahead.clear()
            file.tail.skip()
        self._exhausted = self._sizes()

    def records(self) -> Iterator[Record]:
        """What is there, the header first. Raises `UnreadableInput` where that is none."""
        if self._header is None:
            self._header = read_header(self.path, self._opener)
            if self._header is None:
                return
            self._given = _last(self._header)
            yield self._header
        while True:
            first = self._first()
            if first is None or not self._follows(first.ahead[0]):
                sizes = self._sizes()
                for file in self._files:
                    file.fill()
                first = self._first()
                if first is None:
                    self._since = None
                    self._exhausted = sizes
                    return
                if not self._follows(first.ahead[0]) and not self._waited(first):
                    return
            self._since = None
            record = first.ahead.popleft()
            self._given = max(self._given or (0, 0), _last(record))
            if record != self._header:  # it stands among the events once more
                yield record

    def _sizes(self) -> tuple[int, int]:
        return self._steps.size(), self._events.size()

    def _first(self) -> _FileFollower | None:
        """The file whose next record comes before the other's."""
        waiting = [file for file in self._files if file.ahead]
        return min(waiting, key=lambda file: _order(file.ahead[0]), default=None)

    def _follows(self, record: Record) -> bool:
        last = self._given
        if last is None or record.segment > last[0]:
            return True
        return (record.segment, record.seq) <= (last[0], last[1] + 1)

    def _waited(self, first: _FileFollower) -> bool:
        """Whether a gap will stay: both files have gone on beyond it, or it is an old one."""
        if all(file.ahead for file in self._files) or first.tail.place <= first.passed:
            return True
        now = time.monotonic()
        if self._since is None:
            self._since = now
            for file in self._files:
                file.there = file.size()
        if now - self._since < self._patience:
            return False
        for file in self._files:
            file.passed = file.there
        return True


def _last(record: Record) -> tuple[int, int]:
    """What has been given out with it: a header bears the number of the record it precedes."""
    if isinstance(record, Header):
        return (record.segment, max(record.seq - 1, 0))  # the first record bears 1
    return (record.segment, record.seq)


def _order(record: Record) -> tuple[int, int, bool]:
    """A header comes before the record whose number it bears."""
    return (record.segment, record.seq, not isinstance(record, Header))


# Reading a run directory, ours or one that was cut off in the middle of a line.

# Lazy: of each file a few lines are held at a time, so a run of any length passes in bounded
# memory. A file is open only while these are read: thousands of ranks left thousands of files, and
# a process may have a thousand open.

_RANK = re.compile(r"\.rank(\d+)\.jsonl$")
AHEAD = 1 << 24
"""Bytes read ahead in all files together …"""
AT_ONCE = (1 << 10, 1 << 16)
"""… and at least and at most in each: between two readings a file is closed."""


@dataclass
class RunDir:
    """A run directory opened for reading."""

    path: Path
    torn: int = field(default=0, init=False)
    """Lines that could not be read so far: a killed run leaves one."""
    lines: int = field(default=0, init=False)
    """Lines read so far."""

    def records(self, steps: Iterator[Record] | None = None) -> Iterator[Record]:
        """The stream, in order, the header first. `steps`: instead of what is in their files."""
        header = self._header()
        yield header
        files = self._files(steps=steps is None)
        least, most = AT_ONCE
        ahead = min(max(AHEAD // max(len(files), 1), least), most)
        streams = [self._file(path, ahead) for path in files]
        # A header bears the number of the step it precedes: events come first.
        for record in merge_streams(streams if steps is None else [*streams, steps]):
            if not (isinstance(record, Header) and record == header):
                yield record

    @property
    def one_tells_all(self) -> bool:
        """Whether the steps of the first rank are all the steps there are to look at."""
        told = sorted(path.name for path in self.path.glob("steps.rank*.jsonl"))
        return told[:1] == ["steps.rank0.jsonl"] and (
            len(told) == 1 or self._header().world_size > 1
        )

    def _files(self, *, steps: bool = True) -> list[Path]:
        found = [*self.path.glob("steps.rank*.jsonl")] if steps else []
        found += self.path.glob("events*.jsonl")
        return sorted(path for path in found if path.is_file())

    def _header(self) -> Header:
        header = read_header(self.path)
        if header is None:
            raise UnreadableInput(
                f"cannot read {self.path / 'run.json'}: No such file or directory"
            )
        return header

    def _file(self, path: Path, ahead: int) -> Iterator[Record]:
        match = _RANK.search(path.name)
        rank = int(match.group(1)) if match else 0
        before = (0, 0)
        for line in self._lines(path, ahead):
            try:
                record = from_json(json.loads(line), rank=rank)
            except NO_RECORD:
                self.torn += 1
                continue
            # Order is promised to the merge; a line out of order is damage, not data.
            if (record.segment, record.seq) < before:
                self.torn += 1
                continue
            before = (record.segment, record.seq)
            yield record

    def _lines(self, path: Path, ahead: int) -> Iterator[bytes]:
        """The lines that are not empty; of one that is too long, nothing."""
        before, place = -ahead, 0
        while place - before >= ahead:  # less was left than asked for: that was the end
            before = place
            try:
                lines, place = _some_lines(path, place, ahead)
            except OSError as error:
                raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
            for line in lines:
                if line is None or line.strip():
                    self.lines += 1
                    yield line or b""


def _some_lines(path: Path, place: int, ahead: int) -> tuple[list[bytes | None], int]:
    """The next lines of a file (None: one that is too long), and where to go on after them."""
    lines: list[bytes | None] = []
    with open(path, "rb") as file:
        if place:
            file.seek(place)
        start = place
        while place - start < ahead and (line := file.readline(LONGEST_LINE)):
            place += len(line)
            too_long = len(line) >= LONGEST_LINE and not line.endswith(b"\n")
            lines.append(None if too_long else line)
            while too_long and line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
                place += len(line)
    return lines, place


def is_run_dir(path: Path) -> bool:
    """Whether this is a run directory."""
    return path.is_dir() and (path / "run.json").is_file()
