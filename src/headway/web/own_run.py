"""A headway run directory on the live page: its state, its charts, and checks fed as the run
grows.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import EventRecord, Header, Record, StepRecord
from headway.engine import Engine
from headway.errors import HeadwayError, UnreadableInput
from headway.report import Report
from headway.rundir.chart_data import ChartData
from headway.rundir.run_files import last_lines, read_header
from headway.rundir.run_reader import EVENTS, STEPS, RunFollower
from headway.web.access import ServedFolder
from headway.web.run_entry import IDLE_SECONDS, POINTS, RunCharts, RunEntry

# What the checks say of a run directory, every record looked at once, however long it grows.

REPORT_INTERVAL = 4.0
"""Seconds after which what is told of a run that goes on is told anew."""


class RunReplaced(Exception):
    """The files are not those that were being read: another run has taken their place."""


@dataclass
class IncrementalChecks:
    """The checks of one run and how far they have come."""

    root: ServedFolder
    path: Path
    version: int = field(default=0, init=False)
    """Rises when there is something new to tell."""
    finished: bool = field(default=False, init=False)
    """The checks have said their last word."""
    _stream: RunFollower = field(init=False)
    _engine: Engine | None = field(default=None, init=False)
    """None before the first record, and after the last word."""
    _refreshed: float = field(default=0.0, init=False)
    _report: Report | None = field(default=None, init=False)
    _told: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self._stream = RunFollower(self.path, self.root.open)

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
        if count and now - self._refreshed > REPORT_INTERVAL:
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
                    raise RunReplaced
                yield record
        if stream.renewed:
            raise RunReplaced

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


# A run directory of ours on the page.

FINISH_AFTER_SECONDS = 600.0
"""Seconds without a line after which the checks say their last word."""
CAUGHT_UP = 0.98
TAIL_BYTES = 1 << 16
"""Bytes at the end of the steps that are looked at for where the run is."""
RECENT_STEPS = 30
LONG_RUN_BYTES = 1 << 25
"""Bytes of steps from which on a run that does not grow is looked at as a whole."""
FIRST_READ_SECONDS = 0.15
"""Seconds that a run is read before its charts are first shown."""


@dataclass
class OwnRun(RunEntry):
    """A run directory: the end of it is known at once, the rest is read bit by bit."""

    header: Header | None = field(default=None, init=False)
    wanted: float = field(default=0.0, init=False)
    """When somebody last looked at its charts."""
    _charts: RunCharts | None = field(default=None, init=False)
    _verdicts: IncrementalChecks = field(init=False)
    _seen: tuple[int, int] = field(default=(0, 0), init=False)
    _settled: tuple[int, int] | None = field(default=None, init=False)
    """The sizes of the files when all was said of them."""
    _changed: float = field(default=0.0, init=False)
    _latest: dict[str, Any] = field(default_factory=dict, init=False)
    _action: dict[str, Any] = field(default_factory=dict, init=False)
    _piecemeal: bool = field(default=False, init=False)
    """It has been looked at as a whole, or cannot be."""
    _meanwhile: Report | None = field(default=None, init=False)
    """What is said of it until the checks have caught up."""
    _over: bool = field(default=False, init=False)
    """The run has said that it ended; a resume takes that back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._verdicts = IncrementalChecks(self.root, self.path)

    @property
    def source(self) -> str:
        """Who has written it."""
        return self.header.source if self.header else "headway"

    @property
    def changed(self) -> float:
        """When it was last written to."""
        return self._changed

    def glance(self) -> bool:
        """Whether its files have changed since the last glance; then, where the run is."""
        sizes, changed = [], 0.0
        for name in (STEPS, EVENTS):
            try:
                about = (self.path / name).stat()
            except OSError:
                sizes.append(0)
                continue
            sizes.append(about.st_size)
            changed = max(changed, about.st_mtime)
        if self.header is None:
            with contextlib.suppress(UnreadableInput):
                self.header = read_header(self.path, self.root.open)
        if (sizes[0], sizes[1]) == self._seen:
            return False
        self._seen = (sizes[0], sizes[1])
        self._changed = changed
        self._recall()
        self.version += 1
        return True

    def state(self) -> str:
        """`running`, `ended`, or `silent`: it may have been killed."""
        if self._over:
            return "ended"
        return "running" if time.time() - self._changed < IDLE_SECONDS else "silent"

    def latest(self) -> dict[str, Any]:
        """The last step, its loss, and how many steps a second."""
        return self._latest

    def guard(self) -> dict[str, Any]:
        """What the guard had to do."""
        return self._action

    def progress(self) -> tuple[float, float]:
        """How much of it the charts show, and how much has been checked; 1 is all."""
        drawn = 0.0 if self._charts is None else self._charts.progress
        checked = 1.0 if self._verdicts.finished else _part(self._verdicts.read)
        return drawn, checked

    def report(self) -> Report | None:
        """What has been found so far."""
        with self.lock:
            if self._meanwhile is not None:
                if _part(self._verdicts.read) < CAUGHT_UP:
                    return self._meanwhile
                self._meanwhile = None
            return self._verdicts.report()

    @property
    def report_version(self) -> int:
        """Rises with every finding and event."""
        return self._verdicts.version + (self._meanwhile is not None)

    def charts(self, low: int | None, high: int | None, buckets: int = POINTS) -> ChartData | None:
        """What there is to draw so far."""
        self.touch()
        with self.lock:
            if self._charts is None:
                self.prepare()
                self.draw(FIRST_READ_SECONDS)
            assert self._charts is not None
            return self._charts.between(low, high, buckets)

    def prepare(self) -> None:
        """Begin to hold what charts need."""
        with self.lock:
            if self._charts is None:
                self._charts = RunCharts(self.root, self.path)

    def touch(self) -> None:
        """Somebody looks at it."""
        self.wanted = time.monotonic()

    def draw(self, seconds: float) -> bool:
        """Read on for the charts, where somebody wants them; whether anything new has come."""
        with self.lock:
            if self._charts is None:
                return False
            new = self._charts.advance(seconds)
            self.version += new
            return new

    def check(self, seconds: float) -> int:
        """Read on for the checks."""
        if self._settled == self._seen:
            return 0
        with self.lock:
            known = self._verdicts
            seen = self._seen
            before = known.version
            try:
                count = known.advance(seconds)
            except RunReplaced:
                known = self._verdicts = IncrementalChecks(self.root, self.path)
                known.version = before + 1
                self._meanwhile = None
                count = 1
            quiet = time.time() - self._changed > FINISH_AFTER_SECONDS
            if not count and not known.finished and (self._over or quiet):
                done, of = known.read
                if done >= of or quiet:
                    known.finish()
            if not count and known.finished:
                self._settled = seen
            self.version += bool(count) or known.version != before
            return count

    def forget(self) -> None:
        """Let go of what only charts need."""
        with self.lock:
            self._charts = None

    @property
    def drawn(self) -> bool:
        """Whether it holds what charts need."""
        return self._charts is not None

    def long(self) -> bool:
        """Whether it is better looked at as a whole first, by those who know how to hurry."""
        known = self._verdicts
        if self._piecemeal or known.finished or self._seen[0] <= LONG_RUN_BYTES:
            return False
        return known.read[0] < LONG_RUN_BYTES // 8

    def look(self) -> None:
        """Look at all of it, as `headway diagnose` does."""
        from headway.postmortem.diagnose import diagnose

        before = self._seen
        report = None
        with contextlib.suppress(HeadwayError, OSError):
            if self.root.sound(self.path):
                report = diagnose(self.path)
        with self.lock:
            self._piecemeal = True
            if report is None:
                return
            if self._seen == before and self.state() != "running":
                self._verdicts.conclude(report)
            else:
                # It goes on, so every record is needed; until then this is what is known.
                self._meanwhile = report
            self.version += 1

    def _recall(self) -> None:
        """Where the run is, from the last lines of its files."""
        steps = [record for record in self._end_of(STEPS) if isinstance(record, StepRecord)]
        events = [record for record in self._end_of(EVENTS) if isinstance(record, EventRecord)]
        for event in events:
            if event.kind == "action":
                self._action = {"action": event.data.get("action"), "step": event.step}
        last = (steps[-1].segment, steps[-1].seq) if steps else (0, 0)
        ends = [event for event in events if event.kind == "end"]
        self._over = bool(ends) and (ends[-1].segment, ends[-1].seq) >= last
        if not steps:
            return
        recent = steps[-RECENT_STEPS:]
        times = [step.values["step_time_s"] for step in recent if "step_time_s" in step.values]
        usual = sorted(times)[len(times) // 2] if times else 0.0
        self._latest = {
            "step": recent[-1].step,
            "loss": recent[-1].values.get("loss"),
            "speed": 1 / usual if usual > 0 else None,
        }

    def _end_of(self, name: str) -> list[Record]:
        found: list[Record] = []
        for line in last_lines(self.path / name, TAIL_BYTES, self.root.open):
            try:
                found.append(from_json(json.loads(line)))
            except NO_RECORD:  # torn, or cut off at the beginning
                continue
        return found


def _part(read: tuple[int, int]) -> float:
    done, of = read
    return 1.0 if done >= of else done / of
