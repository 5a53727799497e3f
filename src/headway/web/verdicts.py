"""What the checks say of a run directory, every record looked at once, however long it grows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.records import EventRecord, Record
from headway.engine import Engine
from headway.errors import UnreadableInput
from headway.report import Report
from headway.sources.growing.records import GrowingRun
from headway.web.inside import Root

REFRESH = 4.0
"""Seconds after which what is told of a run that goes on is told anew."""


class Replaced(Exception):
    """The files are not those that were being read: another run has taken their place."""


@dataclass
class Verdicts:
    """The checks of one run and how far they have come."""

    root: Root
    path: Path
    version: int = field(default=0, init=False)
    """Rises when there is something new to tell."""
    finished: bool = field(default=False, init=False)
    """The checks have said their last word."""
    _stream: GrowingRun = field(init=False)
    _engine: Engine | None = field(default=None, init=False)
    """None before the first record, and after the last word."""
    _refreshed: float = field(default=0.0, init=False)
    _report: Report | None = field(default=None, init=False)
    _told: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self._stream = GrowingRun(self.path, self.root.open)

    @property
    def read(self) -> tuple[int, int]:
        """Bytes looked at, and bytes there are."""
        return self._stream.read

    def advance(self, seconds: float) -> int:
        """Look on for about so long; how many records came. Raises `Replaced`."""
        until = time.monotonic() + seconds
        count = 0
        for record in self._records():
            if self._engine is None:
                self._engine = Engine()
            self._engine.feed(record)
            if self._engine.opened or isinstance(record, EventRecord):
                self.version += 1
            count += 1
            if count % 16 == 0 and time.monotonic() > until:
                break
        now = time.monotonic()
        if count and now - self._refreshed > REFRESH:
            self._refreshed = now
            self.version += 1  # more of the checks may have found what they need
        return count

    def _records(self) -> Iterator[Record]:
        """What is new, as long as it is the same run."""
        stream = self._stream
        with contextlib.suppress(UnreadableInput):  # what it says of itself may be mended yet
            for record in stream.records():
                # Where it had ended, and goes on, its checks are gone.
                if self.finished or stream.renewed:
                    raise Replaced
                yield record
        if stream.renewed:
            raise Replaced

    def conclude(self, report: Report) -> None:
        """The run was looked at as a whole: that is what there is to say of it."""
        with contextlib.suppress(UnreadableInput):
            self._stream.skip()
        self._report, self._engine, self.finished = report, None, True
        self.version += 1

    def finish(self) -> None:
        """Nothing more will come, or not for long: let the checks say their last word."""
        if self._engine is not None:
            self._engine.finish()
        self.version += 1
        self.report()
        self._engine = None  # what it knew is not needed any more
        self.finished = True

    def report(self) -> Report | None:
        """What has been found so far; None before the first record."""
        if self._engine is not None and (self._report is None or self._told != self.version):
            self._told = self.version
            torn = self._stream.torn
            notes = [f"{torn} lines were torn and skipped"] if torn else []
            self._report = Report.from_engine(self._engine, command="serve", notes=notes)
        return self._report
