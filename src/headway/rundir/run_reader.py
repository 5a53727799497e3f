"""Reads a run directory: whole, or following it while it grows.

    run = RunDir(path)
    run.records()     every record of all ranks, in order; for a run that has ended
    run.follow()      the records since the last call; for a run that may still be training

A killed run leaves a torn last line, and a disk may damage others: a line that is not a record, or
is out of order, is counted in `torn` and skipped. Memory is bounded for runs of any length.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from headway.checks.setup.hd004_damaged_record import DAMAGED_LINES
from headway.core.codec import NO_RECORD, from_json
from headway.core.records import EventRecord, Header, Record, merge_streams
from headway.errors import UnreadableInput
from headway.rundir.run_files import (
    LONGEST_LINE,
    FileTail,
    Opener,
    last_lines,
    open_regular_file,
    read_header,
)
from headway.rundir.vanished_run import StreamEnd

STEPS, EVENTS = "steps.rank0.jsonl", "events.jsonl"
AHEAD = 1 << 24
"""Bytes that `records` reads ahead in all files together."""
AT_ONCE = (1 << 10, 1 << 16)
"""Bytes that `records` reads ahead in one file, at least and at most."""
PIECE = 1 << 17
"""Bytes that `follow` reads from a file at once."""
PATIENCE = 2.0
"""Seconds that `follow` waits for a missing record; a torn line never arrives."""

_STEPS_FILE = re.compile(r"^steps\.rank(\d{1,9})\.jsonl$")
_EVENTS_FILE = re.compile(r"^events(?:\.rank(\d{1,9}))?\.jsonl$")
_RANK = re.compile(r"\.rank(\d+)\.jsonl$")


def is_run_dir(path: Path) -> bool:
    """Whether this is a run directory."""
    return path.is_dir() and (path / "run.json").is_file()


class _RecordParser:
    """Turns the lines of one file into records."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.unreadable = 0
        """Lines that are no record."""
        self.disordered = 0
        """Records with a lower number than the one before."""
        self.cut = 0
        """Last lines of a process that was killed: nothing of the same segment follows them."""
        self._last = (0, 0)
        self._maybe_cut = False

    def parse(self, line: bytes) -> Record | None:
        """The record; None for a line that is none, or is out of order."""
        try:
            record = from_json(json.loads(line), rank=self.rank)
        except NO_RECORD:
            self._count_line_before(cut=False)
            self._maybe_cut = True
            return None
        self._count_line_before(cut=record.segment > self._last[0])
        if (record.segment, record.seq) < self._last:
            self.disordered += 1
            return None
        self._last = (record.segment, record.seq)
        return record

    def finish(self) -> None:
        """No line of the segment follows."""
        self._count_line_before(cut=True)

    def _count_line_before(self, *, cut: bool) -> None:
        self.cut += self._maybe_cut and cut
        self.unreadable += self._maybe_cut and not cut
        self._maybe_cut = False


class _FollowedFile:
    """A file that grows, and the records read from it that wait for those of the other file."""

    def __init__(self, tail: FileTail) -> None:
        self.tail = tail
        self.ahead: deque[Record] = deque()
        self.torn = 0
        self.size_at_gap = 0
        """Size of the file when a gap was first seen."""
        self.passed = 0
        """The reader no longer waits for records missing before this offset."""
        self._parser = _RecordParser()
        self._renewed = 0

    def fill(self) -> None:
        while not self.ahead:
            piece = self.tail.read(PIECE)
            if self.tail.renewed != self._renewed:
                self._renewed, self._parser = self.tail.renewed, _RecordParser()
                self.size_at_gap = self.passed = 0
            if piece is None:
                return
            self.torn += piece.passed_over
            for line in piece.lines:
                if line and not line.isspace():
                    record = self._parser.parse(line)
                    if record is None:
                        self.torn += 1
                    else:
                        self.ahead.append(record)

    def size(self) -> int:
        try:
            return self.tail.path.stat().st_size
        except OSError:
            return 0


class RunDir:
    """A run directory opened for reading."""

    def __init__(
        self,
        path: str | Path,
        opener: Opener = open_regular_file,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self.path = Path(path)
        self.lines = 0
        """Lines that `records` has read."""
        self.opener = opener
        self._torn = 0
        self._parsers: list[_RecordParser] = []
        self._patience = patience
        self._steps, self._events = (
            _FollowedFile(self.tail(STEPS)),
            _FollowedFile(self.tail(EVENTS)),
        )
        self._followed = (self._steps, self._events)
        self._header: Header | None = None
        self._given: tuple[int, int] | None = None
        """(segment, seq) of the last record that `follow` returned."""
        self._exhausted: tuple[int, int] | None = None
        """Sizes of the files when `follow` had returned everything in them."""
        self._gap_since: float | None = None

    @property
    def torn(self) -> int:
        """Lines that are no record."""
        return self._torn + self._steps.torn + self._events.torn

    # The layout.

    def header(self, *, rank: int = 0) -> Header | None:
        """The run's header; None before it is written. Raises `UnreadableInput` if it is none."""
        return read_header(self.path, self.opener, rank=rank)

    def tail(self, name: str) -> FileTail:
        """A file of the run, to be read as it grows."""
        return FileTail(self.path / name, self.opener)

    def ranks(self) -> list[int]:
        """The ranks that wrote steps."""
        return sorted(int(match[1]) for name in self._names() if (match := _STEPS_FILE.match(name)))

    def event_files(self) -> dict[str, int]:
        """The files of events, and the rank that wrote each."""
        matches = ((name, _EVENTS_FILE.match(name)) for name in self._names())
        return {name: int(match[1] or 0) for name, match in matches if match}

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except OSError:
            return []

    @property
    def rank_0_has_all_steps(self) -> bool:
        """Whether the steps of rank 0 are all there are: ranks that vote write the same steps."""
        names = sorted(path.name for path in self.path.glob("steps.rank*.jsonl"))
        if names[:1] != [STEPS]:
            return False
        return len(names) == 1 or self._require_header().world_size > 1

    def last_records(self, name: str, length: int) -> list[Record]:
        """The records in the last `length` bytes of a file."""
        parser = _RecordParser()
        lines = last_lines(self.path / name, length, self.opener)
        return [record for line in lines if (record := parser.parse(line)) is not None]

    # Whole.

    def records(self, steps: Iterator[Record] | None = None) -> Iterator[Record]:
        """All records in order, the header first. `steps` replaces those of the step files."""
        header = self._require_header()
        yield header
        self._parsers = []
        found = [*self.path.glob("steps.rank*.jsonl")] if steps is None else []
        files = sorted(
            path for path in (*found, *self.path.glob("events*.jsonl")) if path.is_file()
        )
        least, most = AT_ONCE
        ahead = min(max(AHEAD // max(len(files), 1), least), most)
        streams = [self._file(path, ahead) for path in files]
        ended = StreamEnd()
        ended.add(header)
        for record in merge_streams(streams if steps is None else [*streams, steps]):
            if not (isinstance(record, Header) and record == header):
                ended.add(record)
                yield record
        yield from ended.unrecorded(self.path, self.opener)

    def damage(self, last: Record, damaged_steps: int = 0) -> EventRecord | None:
        """An event after the last of `records` with the number of lines that are no records; None
        if all are. `damaged_steps` were found by another reader of the step files."""
        counts = {
            name: sum(getattr(parser, name) for parser in self._parsers)
            for name in ("unreadable", "disordered", "cut")
        }
        cut_steps = min(damaged_steps, last.segment + 1)  # a killed process leaves one
        counts["cut"] += cut_steps
        counts["unreadable"] += damaged_steps - cut_steps
        if not any(counts.values()):
            return None
        counts["lines"] = self.lines + damaged_steps
        return EventRecord(
            last.segment, last.seq + 1, getattr(last, "step", 0), DAMAGED_LINES, counts
        )

    def _require_header(self) -> Header:
        header = self.header()
        if header is None:
            raise UnreadableInput(
                f"cannot read {self.path / 'run.json'}: No such file or directory"
            )
        return header

    def _file(self, path: Path, ahead: int) -> Iterator[Record]:
        match = _RANK.search(path.name)
        parser = _RecordParser(int(match.group(1)) if match else 0)
        self._parsers.append(parser)
        for line in self._lines(path, ahead):
            record = parser.parse(line)
            if record is None:
                self._torn += 1
            else:
                yield record
        parser.finish()

    def _lines(self, path: Path, ahead: int) -> Iterator[bytes]:
        """The lines that are not blank; an empty one in place of a line that is too long."""
        before, place = -ahead, 0
        while place - before >= ahead:  # a shorter read was the end of the file
            before = place
            try:
                lines, place = _some_lines(path, place, ahead)
            except OSError as error:
                raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
            for line in lines:
                if line is None or line.strip():
                    self.lines += 1
                    yield line or b""

    # Following. Two files: the steps of rank 0 and the events. One may be written before the other,
    # so a record that does not follow the last one is kept for a moment; after `patience` the gap
    # is taken for a torn line.

    @property
    def renewed(self) -> int:
        """How often a followed file was replaced by another; it is then read from its start."""
        return self._steps.tail.renewed + self._events.tail.renewed

    @property
    def waiting(self) -> bool:
        """Whether a record was read that `follow` has not returned yet."""
        return any(file.ahead for file in self._followed)

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes that `follow` has returned, about, and bytes in the files."""
        sizes = self._sizes()
        of = sum(sizes)
        if sizes == self._exhausted:  # a half-written last line may remain
            return of, of
        done = sum(file.tail.place - PIECE * bool(file.ahead) for file in self._followed)
        return min(max(done, 0), max(of - 1, 0)), of

    def skip(self) -> None:
        """Continue from the end, as if `follow` had returned everything."""
        self._header = self._header or self.header()
        for file in self._followed:
            file.ahead.clear()
            file.tail.skip()
        self._exhausted = self._sizes()

    def follow(self) -> Iterator[Record]:
        """The records since the last call, the header first. The caller may stop at any record."""
        if self._header is None:
            self._header = self.header()
            if self._header is None:
                return
            self._given = _last(self._header)
            yield self._header
        while True:
            first = self._first()
            if first is None or not self._is_next(first.ahead[0]):
                sizes = self._sizes()
                for file in self._followed:
                    file.fill()
                first = self._first()
                if first is None:
                    self._gap_since = None
                    self._exhausted = sizes
                    return
                if not self._is_next(first.ahead[0]) and not self._gap_is_final(first):
                    return
            self._gap_since = None
            record = first.ahead.popleft()
            self._given = max(self._given or (0, 0), _last(record))
            if record != self._header:  # the events contain it once more
                yield record

    def _sizes(self) -> tuple[int, int]:
        return self._steps.size(), self._events.size()

    def _first(self) -> _FollowedFile | None:
        """The file whose next record comes first."""
        waiting = [file for file in self._followed if file.ahead]
        return min(waiting, key=lambda file: _order(file.ahead[0]), default=None)

    def _is_next(self, record: Record) -> bool:
        last = self._given
        if last is None or record.segment > last[0]:
            return True
        return (record.segment, record.seq) <= (last[0], last[1] + 1)

    def _gap_is_final(self, first: _FollowedFile) -> bool:
        """Whether the missing record will not come: both files are beyond it, or time is up."""
        if all(file.ahead for file in self._followed) or first.tail.place <= first.passed:
            return True
        now = time.monotonic()
        if self._gap_since is None:
            self._gap_since = now
            for file in self._followed:
                file.size_at_gap = file.size()
        if now - self._gap_since < self._patience:
            return False
        for file in self._followed:
            file.passed = file.size_at_gap
        return True


def _last(record: Record) -> tuple[int, int]:
    """(segment, seq) returned with it: a header has the number of the record that it precedes."""
    if isinstance(record, Header):
        return (record.segment, max(record.seq - 1, 0))
    return (record.segment, record.seq)


def _order(record: Record) -> tuple[int, int, bool]:
    """Sorts a header before the record that has the same number."""
    return (record.segment, record.seq, not isinstance(record, Header))


def _some_lines(path: Path, place: int, ahead: int) -> tuple[list[bytes | None], int]:
    """The next lines of a file (None for one that is too long), and the offset after them.

    The file is closed between two calls: thousands of ranks leave thousands of files, and a process
    may have about a thousand open.
    """
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
