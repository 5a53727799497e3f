"""Writes a run directory.

Ranks beyond the first 64 write only records that rank 0 cannot provide.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from headway.core.codec import NO_RECORD, from_json, to_json
from headway.core.records import EventRecord, Header, Record, StepRecord, TensorRecord

# What a rank among thousands writes down: only what nobody else can tell.

# Rank 0 knows the numbers of all ranks at every step. A line per step from each of 16,000 others
# would say the same once more, in 16,000 files. What it cannot know is what a rank found in its
# own batch and its own tensors, and what went wrong in that process alone.

FULL_RANKS = 64
"""Ranks below this one write everything: eight nodes of eight fit in one directory listing."""
EVENTS_OF_ALL_RANKS = ("action", "scan", "roll-back", "resumed", "preempted", "end")
"""Events that happen on all ranks at once, so that rank 0 has told them."""


class SparseRankFilter:
    """Chooses the records of one rank that are worth a line."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._header: Header | None = None

    def choose(self, record: Record) -> list[Record]:
        """The record, after the header it needs; or nothing."""
        if isinstance(record, Header):
            self._header = record
            return []
        if not self._tells(record):
            return []
        header, self._header = self._header, None
        return [record] if header is None else [header, record]

    def _tells(self, record: Record) -> bool:
        if isinstance(record, StepRecord):
            return self._mine(record)
        if isinstance(record, EventRecord):
            return record.kind not in EVENTS_OF_ALL_RANKS
        return isinstance(record, TensorRecord)

    def _mine(self, record: StepRecord) -> bool:
        """Whether the step went bad, and through this rank."""
        column = record.columns.get("rank/nonfinite")
        return column is not None and bool(dict(column.items()).get(self._rank))


# Writing a run directory.

#     run.json               the header of the first segment
#     steps.rank<R>.jsonl    one line per optimizer step
#     events.jsonl           everything else, later headers included; of the other ranks:
#                            events.rank<R>.jsonl

# Append-only lines survive kill -9 and network file systems. Lines are gathered and written at
# most once a second, at once when something is wrong. If the disk fails, the run goes on without
# the directory and is told so, once. Of thousands of ranks most write only what they alone can
# tell (`sparse.py`), and make no file before there is something of that kind.

FLUSH_SECONDS = 1.0
FLUSH_BYTES = 1 << 16


class RunDirWriter:
    """Writes the records of one rank into a run directory. Never raises."""

    def __init__(
        self,
        path: str | Path,
        *,
        rank: int = 0,
        told: Callable[[str], None],
        full_ranks: int = FULL_RANKS,
    ) -> None:
        """`told` is called with one sentence if the directory cannot be written.

        Ranks from `full_ranks` on write only what they alone can tell; rank 0 writes everything.
        """
        self.path = Path(path)
        self.rank = rank
        self.broken = False
        self._told = told
        self._sparse = SparseRankFilter(rank) if rank >= max(full_ranks, 1) else None
        self._steps: list[str] = []
        self._events: list[str] = []
        self._bytes = 0
        self._flushed_at = time.monotonic()
        self._segment = 0
        self._attempt(self._open)

    @property
    def segment(self) -> int:
        """The segment this writer writes: one more than the directory held before."""
        return self._segment

    def write(self, record: Record, *, now: bool = False) -> None:
        """Take a record; `now` when it must be on disk before anything else happens."""
        self._attempt(lambda: self._take(record))
        due = time.monotonic() - self._flushed_at > FLUSH_SECONDS
        if now or due or self._bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Everything taken so far onto the disk."""
        self._attempt(self._write_lines)

    def _attempt(self, work: Callable[[], None]) -> None:
        if self.broken:
            return
        try:
            work()
        except Exception as error:  # a record is worth less than the run it is about
            self.broken = True
            self._steps, self._events = [], []
            self._told(
                f"cannot write the run directory {self.path}: "
                f"{getattr(error, 'strerror', None) or error}; "
                "training goes on, nothing more is recorded there"
            )

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if self._sparse is None:  # thousands of ranks need not all try
            probe = self.path / f".write-test.rank{self.rank}"
            probe.write_bytes(b"")
            probe.unlink()
        held = max(_last_segment(self._steps_file), _last_segment(self._events_file))
        # Ranks start together, so that a header may be there although this is the first segment.
        if self.rank == 0 and (self.path / "run.json").exists():
            held = max(held, 0)
        self._segment = held + 1

    @property
    def _steps_file(self) -> Path:
        return self.path / f"steps.rank{self.rank}.jsonl"

    @property
    def _events_file(self) -> Path:
        return self.path / (f"events.rank{self.rank}.jsonl" if self.rank else "events.jsonl")

    def _take(self, record: Record) -> None:
        for chosen in [record] if self._sparse is None else self._sparse.choose(record):
            self._add(chosen)

    def _add(self, record: Record) -> None:
        line = json.dumps(to_json(record), separators=(",", ":"), allow_nan=False, default=str)
        (self._steps if isinstance(record, StepRecord) else self._events).append(line)
        self._bytes += len(line)
        if isinstance(record, Header) and self.rank == 0:
            self._write_header(line)

    def _write_header(self, line: str) -> None:
        target = self.path / "run.json"
        if not target.exists():
            temporary = self.path / ".run.json.new"
            temporary.write_text(line + "\n", encoding="utf-8")
            os.replace(temporary, target)

    def _write_lines(self) -> None:
        _append(self._steps_file, self._steps)
        _append(self._events_file, self._events)
        self._steps, self._events = [], []
        self._bytes = 0
        self._flushed_at = time.monotonic()


def _append(path: Path, lines: list[str]) -> None:
    if not lines:
        return
    with open(path, "ab") as file:
        # A torn last line of a killed run must not swallow the first line of this one.
        torn = file.tell() > 0 and not _ends_with_newline(path)
        text = "\n" * torn + "\n".join(lines) + "\n"
        file.write(text.encode("utf-8"))


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _last_segment(path: Path) -> int:
    """The segment of the last whole record; -1 when there is none. Reads the file's tail only."""
    tail = 1 << 20
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            while True:
                file.seek(max(0, size - tail))
                for line in reversed(file.read(tail).splitlines()):
                    try:
                        return from_json(json.loads(line)).segment
                    except NO_RECORD:
                        continue
                if tail >= size:
                    return -1
                tail *= 8
    except OSError:
        return -1
