"""The records of a run directory that grows, in order, a little at a time.

Two files are followed, the steps of the first rank and the events. Only whole lines are taken: the
last one may be half written. A file is never read ahead of the other by more than a piece, so that
memory does not grow with the run. One file may be written before the other: a record that does not
follow on what was given out is held back for a moment.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.core.codec import NO_RECORD, from_json
from holdfast.core.records import Header, Record
from holdfast.web.inside import Root

STEPS, EVENTS = "steps.rank0.jsonl", "events.jsonl"
PIECE = 1 << 17
"""Bytes taken from a file at one reading."""
LONGEST_LINE = 1 << 24
"""A longer line is no record of ours."""
PATIENCE = 2.0
"""Seconds that a gap is waited for; a torn line never comes."""


class Replaced(Exception):
    """The files are not those that were being read: another run has taken their place."""


class Tail:
    """The whole lines of one file, from where the last look ended."""

    def __init__(self, root: Root, path: Path) -> None:
        self.path = path
        self.place = 0
        """Where the next line begins."""
        self.torn = 0
        self._root = root
        self._skipping = False
        """Within a line that is too long."""
        self._node: int | None = None

    def size(self) -> int:
        """Bytes there are."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def lines(self) -> list[bytes]:
        """Some lines."""
        try:
            about = self.path.stat()
        except OSError:
            return []
        if about.st_size < self.place or (self._node or about.st_ino) != about.st_ino:
            raise Replaced
        self._node = about.st_ino
        if about.st_size == self.place:
            return []
        file = self._root.open(self.path)
        if file is None:
            return []
        with file:
            try:
                return self._read(file)
            except OSError:  # not for the moment
                return []

    def _read(self, file: BinaryIO) -> list[bytes]:
        most = PIECE
        while True:
            file.seek(self.place)
            data: bytes = file.read(most)
            end = data.rfind(b"\n") + 1
            if end or len(data) < most:
                break
            if most >= LONGEST_LINE:
                self._skipping = True
                self.place += len(data)
                return []
            most *= 4
        found: list[bytes] = []
        for line in data[:end].splitlines(keepends=True):
            if self._skipping:
                self._skipping = not line.endswith(b"\n")
                self.torn += 1
            elif line.strip():
                found.append(line)
        self.place += end
        return found


class _Follower:
    """A file's records that wait to be given out."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.ahead: deque[Record] = deque()
        self._before = (0, 0)

    def fill(self) -> None:
        while not self.ahead:
            lines = self.tail.lines()
            if not lines:
                return
            for line in lines:
                try:
                    record = from_json(json.loads(line))
                except NO_RECORD:
                    self.tail.torn += 1
                    continue
                # Order is promised; a line out of order is damage, not data.
                if (record.segment, record.seq) < self._before:
                    self.tail.torn += 1
                    continue
                self._before = (record.segment, record.seq)
                self.ahead.append(record)


class Ordered:
    """Both files as one stream; a look may end at any record and go on later."""

    def __init__(self, root: Root, path: Path) -> None:
        self.path = path
        self.steps = Tail(root, path / STEPS)
        self.events = Tail(root, path / EVENTS)
        self._root = root
        self._files = (_Follower(self.steps), _Follower(self.events))
        self._header: Header | None = None
        self._given: tuple[int, int] | None = None
        self._exhausted: tuple[int, int] | None = None
        """The sizes of the files when everything in them had been given out."""
        self._since: float | None = None
        """When a gap was first seen."""

    @property
    def torn(self) -> int:
        """Whole lines that held no record."""
        return self.steps.torn + self.events.torn

    @property
    def read(self) -> tuple[int, int]:
        """Bytes given out, about, and bytes there are. A half written line is not waited for."""
        sizes = self._sizes()
        of = sum(sizes)
        if sizes == self._exhausted:
            return of, of
        done = sum(file.tail.place - PIECE * bool(file.ahead) for file in self._files)
        return min(max(done, 0), max(of - 1, 0)), of

    def _sizes(self) -> tuple[int, int]:
        return self.steps.size(), self.events.size()

    def skip(self) -> None:
        """Go on from the end, as if all that is there had been given out."""
        self._header = self._header or header_of(self._root, self.path)
        for file in self._files:
            file.ahead.clear()
            file.tail.place = file.tail.size()
        self._exhausted = self._sizes()

    def records(self) -> Iterator[Record]:
        """What is there. Raises `Replaced`."""
        if self._header is None:
            self._header = header_of(self._root, self.path)
            if self._header is None:
                return
            self._given = (self._header.segment, self._header.seq - 1)
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
                alone = not all(file.ahead for file in self._files)
                if alone and not self._follows(first.ahead[0]) and not self._waited():
                    return
            self._since = None
            record = first.ahead.popleft()
            self._given = max(self._given or (0, 0), (record.segment, record.seq))
            if record != self._header:  # it stands among the events once more
                yield record

    def _first(self) -> _Follower | None:
        """The file whose next record comes before the other's."""
        waiting = [file for file in self._files if file.ahead]
        return min(waiting, key=lambda file: _order(file.ahead[0]), default=None)

    def _follows(self, record: Record) -> bool:
        last = self._given
        if last is None or record.segment > last[0]:
            return True
        return (record.segment, record.seq) <= (last[0], last[1] + 1)

    def _waited(self) -> bool:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since > PATIENCE


def header_of(root: Root, path: Path) -> Header | None:
    """What a run says of itself; None while that is not written, or cannot be read."""
    text = root.text(path / "run.json", LONGEST_LINE)
    if not text:
        return None
    try:
        record = from_json(json.loads(text))
    except NO_RECORD:
        return None
    return record if isinstance(record, Header) else None


def _order(record: Record) -> tuple[int, int, bool]:
    """A header bears the number of the record it precedes."""
    return (record.segment, record.seq, not isinstance(record, Header))
