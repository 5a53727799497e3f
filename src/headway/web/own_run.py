"""A run directory on the live page: its state, its charts, and checks that follow it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.records import EventRecord, Header, Record, StepRecord
from headway.engine import Engine
from headway.errors import HeadwayError, UnreadableInput
from headway.report import Report
from headway.rundir.chart_data import ChartData
from headway.rundir.live_charts import LiveCharts
from headway.rundir.run_reader import EVENTS, STEPS, RunDir
from headway.rundir.vanished_run import StreamEnd
from headway.web.run_entry import IDLE_SECONDS, POINTS, RunEntry, RunFigures

REPORT_INTERVAL = 4.0
"""Seconds after which the report on a growing run is rebuilt."""


class RunReplaced(Exception):
    """The files were replaced by those of another run."""


@dataclass
class IncrementalChecks:
    """The checks of one run. Each record is checked once, however long the run grows."""

    run: RunDir
    version: int = field(default=0, init=False)
    """Increases when the report changes."""
    finished: bool = field(default=False, init=False)
    """Whether the checks have finished."""
    figures: RunFigures = field(default_factory=RunFigures, init=False)
    _engine: Engine | None = field(default=None, init=False)
    """None before the first record and after the end."""
    _refreshed: float = field(default=0.0, init=False)
    _report: Report | None = field(default=None, init=False)
    _reported: int = field(default=-1, init=False)
    """The version that `_report` is of."""
    _end: StreamEnd = field(default_factory=StreamEnd, init=False)

    @property
    def vanished(self) -> bool:
        """Whether a process of the run has ended without recording it."""
        return any(self._end.unrecorded(self.run.path, self.run.opener))

    @property
    def progress(self) -> float:
        """The share of the run that has been checked."""
        if self.finished:
            return 1.0
        done, of = self.run.progress
        return 1.0 if done >= of else done / of

    def advance(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> int:
        """Check for about `seconds`, or until `stop`; the number of new records.

        Raises `RunReplaced`.
        """
        until = time.monotonic() + seconds
        count = 0
        for record in self._records():
            if self._engine is None:
                self._engine = Engine()
            self._engine.feed(record)
            self._end.add(record)
            self.figures.add(record)
            if self._engine.opened or isinstance(record, EventRecord):
                self.version += 1
            count += 1
            if count % 16 == 0 and (time.monotonic() > until or stop()):
                break
        now = time.monotonic()
        if count and now - self._refreshed > REPORT_INTERVAL:
            self._refreshed = now
            self.version += 1  # further checks may have started
        return count

    def _records(self) -> Iterator[Record]:
        """New records, as long as it is the same run."""
        with contextlib.suppress(UnreadableInput):  # the header may still be repaired
            for record in self.run.follow():
                # A run that continues after its end needs new checks.
                if self.finished or self.run.renewed:
                    raise RunReplaced
                yield record
        if self.run.renewed:
            raise RunReplaced

    def conclude(self, report: Report) -> None:
        """Take the report of a run that was checked as a whole."""
        with contextlib.suppress(UnreadableInput):
            self.run.skip()
        if report.charts is not None:
            self.figures = RunFigures.from_charts(report.charts())
        self._report, self._engine, self.finished = report, None, True
        self.version += 1

    def finish(self) -> None:
        """The run has ended, or paused for long: finish the checks."""
        if self._engine is not None:
            for event in self._end.unrecorded(self.run.path, self.run.opener):
                self._engine.feed(event)
            self._engine.finish()
        self.version += 1
        self.report()
        self._engine = None  # frees its memory
        self.finished = True

    def report(self) -> Report | None:
        """The report so far; None before the first record."""
        if self._engine is not None and (self._report is None or self._reported != self.version):
            self._reported = self.version
            torn = self.run.torn
            notes = [f"{torn} damaged lines were skipped"] if torn else []
            self._report = Report.from_engine(self._engine, command="serve", notes=notes)
        return self._report


FINISH_AFTER_SECONDS = 600.0
"""Seconds without a new line after which the checks are finished."""
VANISHED_AFTER_SECONDS = 3.0
"""Seconds without a new line after which the run's process is looked for."""
CAUGHT_UP = 0.98
TAIL_BYTES = 1 << 16
"""Bytes at the end of a file that are read for the latest step."""
RECENT_STEPS = 30
NOTES, MAX_NOTE_BYTES = "notes.md", 4096
"""A file in the run directory that people write; its words with `#` are tags."""
LONG_RUN_BYTES = 1 << 25
"""A run that does not grow is checked as a whole from this size of its step file on."""
LEAST_WEIGHT = 0.1
FIRST_READ_SECONDS = 0.15
"""Seconds that a run is read before its charts are first drawn."""


@dataclass
class OwnRun(RunEntry):
    """A run directory: its end is read at once, the rest in small steps."""

    header: Header | None = field(default=None, init=False)
    _run: RunDir = field(init=False)
    _charts: LiveCharts | None = field(default=None, init=False)
    _cursor: str = field(default="", init=False)
    _checks: IncrementalChecks = field(init=False)
    _seen: tuple[int, int] = field(default=(0, 0), init=False)
    _settled: tuple[int, int] | None = field(default=None, init=False)
    """Sizes of the files when the checks had finished."""
    _changed: float = field(default=0.0, init=False)
    _latest: dict[str, Any] = field(default_factory=dict, init=False)
    _action: dict[str, Any] = field(default_factory=dict, init=False)
    _piecemeal: bool = field(default=False, init=False)
    """It was checked as a whole, or cannot be."""
    _meanwhile: Report | None = field(default=None, init=False)
    """The report on the whole run until the checks have caught up."""
    _over: bool = field(default=False, init=False)
    """Whether the run has recorded its end; a resume clears it."""
    _vanished: bool = field(default=False, init=False)
    """Whether its process ended without that; a resume clears it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._run = RunDir(self.path, self.root.open)
        self._checks = self._new_checks()

    def _new_checks(self) -> IncrementalChecks:
        return IncrementalChecks(RunDir(self.path, self.root.open))

    @property
    def source(self) -> str:
        """The program that wrote it."""
        return self.header.source if self.header else "headway"

    @property
    def changed(self) -> float:
        """When it was last written to."""
        return self._changed

    def glance(self) -> bool:
        """Whether its files have changed since the last call; then reads the latest step."""
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
                self.header = self._run.header()
        if (sizes[0], sizes[1]) == self._seen:
            return False
        self._seen = (sizes[0], sizes[1])
        self._changed = changed
        self._read_latest()
        self.version += 1
        return True

    def state(self) -> str:
        """`running`, `ended`, or `silent`: it may have been killed."""
        if self._over or self._vanished:
            return "ended"
        return "running" if time.time() - self._changed < IDLE_SECONDS else "silent"

    def latest(self) -> dict[str, Any]:
        """The last step, its loss, and steps per second."""
        return self._latest

    def figures(self) -> RunFigures:
        """Best loss, duration and so on, of the part of the run that was checked."""
        return self._checks.figures

    def facts(self) -> Mapping[str, Any]:
        """The settings that the run recorded."""
        return {} if self.header is None else self.header.facts

    def note(self) -> str:
        """The notes of the user, in `notes.md` of the run directory."""
        text = self.root.text(self.path / NOTES, MAX_NOTE_BYTES) or b""
        return text.decode("utf-8", "replace")

    def guard(self) -> dict[str, Any]:
        """The last action of the guard."""
        return self._action

    def progress(self) -> tuple[float, float]:
        """The shares of the run that are drawn and checked."""
        drawn = 0.0 if self._charts is None else self._charts.progress
        return drawn, self._checks.progress

    def report(self) -> Report | None:
        """The report so far."""
        with self.lock:
            if self._meanwhile is not None:
                if self._checks.progress < CAUGHT_UP:
                    return self._meanwhile
                self._meanwhile = None
            return self._checks.report()

    @property
    def report_version(self) -> int:
        """Increases with every finding and event."""
        return self._checks.version + (self._meanwhile is not None)

    def charts(
        self,
        low: int | None,
        high: int | None,
        buckets: int = POINTS,
        *,
        maps: bool = False,
        beside: int = 1,
    ) -> ChartData | None:
        """The chart data so far; `beside`: how many runs are shown together."""
        self.touch()
        with self.lock:
            if self._charts is None:
                self.prepare()
                if beside == 1:  # several runs are drawn from samples first
                    self.draw(FIRST_READ_SECONDS)
            assert self._charts is not None
            return self._charts.window(low, high, buckets, maps=maps)

    def prepare(self) -> None:
        """Start to read for charts."""
        with self.lock:
            if self._charts is None:
                self._charts = LiveCharts(self._run)

    def draw(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Read for the charts, if they are in use; whether there is anything new."""
        with self.lock:
            if self._charts is None:
                return False
            more = self._charts.read(seconds, stop)
            cursor = self._charts.since(self._cursor).cursor
            new = more or cursor != self._cursor
            self._cursor = cursor
            self.version += new
            return new

    def check(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> int:
        """Read for the checks; the number of new records."""
        if self._settled == self._seen:
            return 0
        with self.lock:
            known = self._checks
            seen = self._seen
            before = known.version
            try:
                count = known.advance(seconds, stop)
            except RunReplaced:
                known = self._checks = self._new_checks()
                known.version = before + 1
                self._meanwhile = None
                count = 1
            quiet = time.time() - self._changed > FINISH_AFTER_SECONDS
            ended = quiet or (known.progress >= 1 and (self._over or self._has_vanished()))
            if not count and not known.finished and ended:
                known.finish()
            if not count and known.finished:
                self._settled = seen
            self.version += bool(count) or known.version != before
            return count

    def forget(self) -> None:
        """Free the chart data."""
        with self.lock:
            self._charts = None

    @property
    def drawn(self) -> bool:
        """Whether chart data is kept."""
        return self._charts is not None

    @property
    def weight(self) -> float:
        """The memory of its chart data, where that of a long run is 1."""
        return min(max(self._seen[0] / LONG_RUN_BYTES, LEAST_WEIGHT), 1.0)

    def long(self) -> bool:
        """Whether to check it as a whole first, which is faster for a long run."""
        known = self._checks
        if self._piecemeal or known.finished or self._seen[0] <= LONG_RUN_BYTES:
            return False
        return known.run.progress[0] < LONG_RUN_BYTES // 8

    def look(self) -> None:
        """Check all of it, as `headway diagnose` does."""
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
                self._checks.conclude(report)
            else:
                # It is still growing, so every record must be checked; show this until then.
                self._meanwhile = report
            self.version += 1

    def _has_vanished(self) -> bool:
        if time.time() - self._changed > VANISHED_AFTER_SECONDS:
            self._vanished = self._checks.vanished
        return self._vanished

    def _read_latest(self) -> None:
        """Read the latest step, action and end from the last lines of the files."""
        steps = [
            item
            for item in self._run.last_records(STEPS, TAIL_BYTES)
            if isinstance(item, StepRecord)
        ]
        events = [
            item
            for item in self._run.last_records(EVENTS, TAIL_BYTES)
            if isinstance(item, EventRecord)
        ]
        for event in events:
            if event.kind == "action":
                self._action = {"action": event.data.get("action"), "step": event.step}
        last = (steps[-1].segment, steps[-1].seq) if steps else (0, 0)
        ends = [event for event in events if event.kind == "end"]
        self._vanished = False
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
