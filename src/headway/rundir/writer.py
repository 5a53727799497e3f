"""Writes a run directory.

Ranks beyond the first 64 write only records that rank 0 cannot provide.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headway.core.codec import NO_RECORD, from_json, step_line, to_json
from headway.core.ending_facts import ENDING
from headway.core.records import EventRecord, Header, Record, StepRecord, TensorRecord
from headway.core.signals import Signal
from headway.errors import RunDirInUse
from headway.rundir.remote_run import RemoteRun
from headway.rundir.run_files import is_url, local_path
from headway.rundir.run_lock import RunLock, release_in_children

# Rank 0 records the values of all ranks at every step, so the other ranks need not. Beyond the
# first 64, a rank writes only what it alone knows: findings in its own batch and tensors, and
# events of its own process.

FULL_RANKS = 64
"""Ranks below this one write everything."""
EVENTS_OF_ALL_RANKS = ("action", "scan", "roll-back", "resumed", "preempted", "end")
"""Events that happen on all ranks at once, so that rank 0 writes them."""


class SparseRankFilter:
    """Selects the records that only this rank can write."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._header: Header | None = None

    def choose(self, record: Record) -> list[Record]:
        """The record, preceded by its header if that was not written yet; or nothing."""
        if isinstance(record, Header):
            self._header = record
            return []
        if not self._is_own(record):
            return []
        header, self._header = self._header, None
        return [record] if header is None else [header, record]

    def _is_own(self, record: Record) -> bool:
        if isinstance(record, StepRecord):
            return self._is_own_step(record)
        if isinstance(record, EventRecord):
            return record.kind not in EVENTS_OF_ALL_RANKS
        return isinstance(record, TensorRecord)

    def _is_own_step(self, record: StepRecord) -> bool:
        """Whether this rank caused a bad step."""
        column = record.columns.get("rank/nonfinite")
        return column is not None and bool(dict(column.items()).get(self._rank))


#     run.json               the header of the first segment
#     steps.rank<R>.jsonl    one line per optimizer step
#     events.jsonl           everything else, later headers included
#     events.rank<R>.jsonl   the same of the other ranks
#     run.lock               names the process of rank 0 while it records

# Append-only lines survive kill -9 and network file systems. Lines are buffered and written once a
# second, or at once when something is wrong. If the disk fails, the training continues without the
# run directory.

FLUSH_SECONDS = 1.0
FLUSH_BYTES = 1 << 16


class RunDirWriter:
    """Writes the records of one rank into a run directory.

    Raises only when it is created: `RunDirInUse`, or `UsageError` for a store that cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rank: int = 0,
        notify: Callable[[str], None],
        full_ranks: int = FULL_RANKS,
    ) -> None:
        """`notify` is called with a message if the directory cannot be written.

        Ranks from `full_ranks` on write only what they alone know; rank 0 writes everything.
        """
        self.remote = RemoteRun(path, rank=rank, notify=notify) if is_url(path) else None
        """The run in a store, if `path` is a URL; `path` is then a local folder."""
        self.path = local_path(path) if self.remote is None else self.remote.folder
        self.location = str(self.path) if self.remote is None else self.remote.url
        """Where a reader finds the run."""
        self.rank = rank
        self.broken = False
        self._notify = notify
        self._sparse = SparseRankFilter(rank) if rank >= max(full_ranks, 1) else None
        self._steps: list[str] = []
        self._events: list[str] = []
        self._bytes = 0
        self._flushed_at = time.monotonic()
        self._segment = 0
        self._release: Callable[[], object] = lambda: None
        self._attempt(self._open)
        release_in_children(self)

    def let_go(self) -> None:
        """Write nothing any more: what is buffered is the parent's."""
        self.broken = True
        self._steps, self._events = [], []

    @property
    def segment(self) -> int:
        """The segment this writer writes: one more than the last in the directory."""
        return self._segment

    def write(self, record: Record, *, now: bool = False) -> None:
        """Add a record; with `now` it is written to disk at once."""
        self._attempt(self._take, record)
        if now or self._bytes > FLUSH_BYTES or time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write everything buffered to disk."""
        self._attempt(self._write_lines)

    def close(self) -> None:
        """Write everything, and release the directory for another process."""
        self.flush()
        self._release()
        if self.remote is not None:
            self.remote.close()

    def _attempt(self, work: Callable[..., None], *records: Record) -> None:
        if self.broken:
            return
        try:
            work(*records)
        except RunDirInUse:
            raise
        except Exception as error:  # losing the records is better than losing the run
            self.broken = True
            self._steps, self._events = [], []
            self._notify(
                f"cannot write the run directory {self.path}: "
                f"{getattr(error, 'strerror', None) or error}; "
                "training continues, but nothing more is recorded"
            )

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:  # the other ranks of a job go with it
            self._lock()
        if self._sparse is None:  # thousands of ranks need not all test it
            probe = self.path / f".write-test.rank{self.rank}"
            probe.write_bytes(b"")
            probe.unlink()
        held = max(_last_segment(self._steps_file), _last_segment(self._events_file))
        # Ranks start together, so run.json may exist although this is the first segment.
        if self.rank == 0 and (self.path / "run.json").exists():
            held = max(held, 0)
        self._segment = held + 1

    def _lock(self) -> None:
        lock = RunLock.acquire(self.path)
        self._release = weakref.finalize(self, lock.release)
        if lock.doubt is not None:
            self._notify(
                f"{lock.doubt} recorded into {self.path} last, and this file system cannot lock "
                "files. Make sure that it has ended"
            )

    @property
    def _steps_file(self) -> Path:
        return self.path / f"steps.rank{self.rank}.jsonl"

    @property
    def _events_file(self) -> Path:
        return self.path / (f"events.rank{self.rank}.jsonl" if self.rank else "events.jsonl")

    def _take(self, record: Record) -> None:
        if self._sparse is None:
            self._add(record)
            return
        for chosen in self._sparse.choose(record):
            self._add(chosen)

    def _add(self, record: Record) -> None:
        if type(record) is StepRecord:
            line = step_line(record) or _line(record)
            self._bytes += len(line)
            self._steps.append(line)
            return
        line = _line(record)
        self._bytes += len(line)
        self._events.append(line)
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
        # The torn last line of a killed run must not absorb the first new line.
        torn = file.tell() > 0 and not _ends_with_newline(path)
        text = "\n" * torn + "\n".join(lines) + "\n"
        file.write(text.encode("utf-8"))


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def append_events(run_dir: Path, rank: int, events: Sequence[tuple[int, str, Any]]) -> None:
    """Add events to a run whose process is gone: (step, kind, data). Raises OSError.

    A run that wrote no header yet gets one.
    """
    name = f"events.rank{rank}.jsonl" if rank else "events.jsonl"
    files = [run_dir / f"steps.rank{rank}.jsonl", run_dir / name]
    segment, seq = max(_last_position(path) for path in files)
    run_dir.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    if segment < 0:
        segment = 0
    if rank == 0 and not (run_dir / "run.json").exists():
        header = Header(source="headway", signals={ENDING: Signal()}, facts={})
        (run_dir / "run.json").write_text(_line(header) + "\n", encoding="utf-8")
    for step, kind, data in events:
        seq += 1
        records.append(EventRecord(segment, seq, step, kind, data, rank=rank))
    _append(run_dir / name, [_line(record) for record in records])


def _line(record: Record) -> str:
    return _encode(to_json(record))


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str).encode


def _last_segment(path: Path) -> int:
    """The segment of the last whole record; -1 if there is none."""
    return _last_position(path)[0]


def _last_position(path: Path) -> tuple[int, int]:
    """(segment, seq) of the last whole record; (-1, 0) if there is none. Reads only the end."""
    tail = 1 << 20
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            while True:
                file.seek(max(0, size - tail))
                for line in reversed(file.read(tail).splitlines()):
                    try:
                        record = from_json(json.loads(line))
                    except NO_RECORD:
                        continue
                    return record.segment, record.seq
                if tail >= size:
                    return -1, 0
                tail *= 8
    except OSError:
        return -1, 0
