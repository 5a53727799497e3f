"""Reading a run directory, ours or one that was cut off in the middle of a line.

Lazy: of each file a few lines are held at a time, so a run of any length passes in bounded memory.
A file is open only while these are read: thousands of ranks left thousands of files, and a process
may have a thousand open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import Header, Record
from headway.core.stream import merge
from headway.errors import UnreadableInput
from headway.sources.growing.lines import LONGEST_LINE
from headway.sources.run_header import header_of

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
        for record in merge(streams if steps is None else [*streams, steps]):
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
        header = header_of(self.path)
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


def recognise(path: Path) -> bool:
    """Whether this is a run directory."""
    return path.is_dir() and (path / "run.json").is_file()
