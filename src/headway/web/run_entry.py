"""Runs on the live page: what all of them share, and logs of other tools."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.records import Record, SetupRecord, StepRecord
from headway.errors import HeadwayError
from headway.report import Report
from headway.rundir.chart_data import SAMPLES, STEP_TIME, ChartData, build_charts, cut_window
from headway.web.access import ServedFolder

IDLE_SECONDS = 60.0
"""Seconds without a new line after which a run no longer counts as running."""


def make_run_id(name: str) -> str:
    """The id of a run in a URL. It is no path, so a URL cannot name a file."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass
class RunFigures:
    """The figures of a whole run in the table of runs."""

    steps: int = 0
    best: float | None = None
    """The lowest finite loss."""
    seconds: float = 0.0
    samples: float = 0.0
    precision: str = ""
    counted: int = 0
    """Steps whose samples were counted."""

    def add(self, record: Record) -> None:
        """Take one more record of the run into account."""
        if isinstance(record, SetupRecord) and record.topic == "precision":
            self.precision = ", ".join(map(str, record.facts.get("compute", ())))
        if not isinstance(record, StepRecord) or record.rank:
            return
        self.steps += 1
        values = record.values
        loss = values.get("loss")
        if loss is not None and math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best = loss
        spent = values.get(STEP_TIME, 0.0)
        if spent >= 0 and math.isfinite(spent):
            self.seconds += spent
            speed = values.get(SAMPLES, 0.0)
            if speed > 0 and math.isfinite(speed):
                self.samples += speed * spent
                self.counted += 1

    @classmethod
    def from_charts(cls, data: ChartData) -> RunFigures:
        """The same from charts, which keep the extremes."""
        loss = data.series.get("loss")
        values = [] if loss is None else loss.points()[1].tolist()
        ends = {name: clock.points()[1].tolist() for name, clock in data.clocks.items()}
        seconds, samples = ((ends.get(name) or [0.0])[-1] for name in ("time", "samples"))
        precision = data.facts.get("precision")
        compute = precision.get("compute", ()) if isinstance(precision, Mapping) else ()
        best = min(values, default=None)
        speeds = data.series.get(SAMPLES)
        counted = 0 if speeds is None else speeds.seen
        return cls(data.steps, best, seconds, samples, ", ".join(map(str, compute)), counted)


@dataclass
class RunEntry:
    """A run on the page."""

    root: ServedFolder
    path: Path
    id: str = field(init=False)
    name: str = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    version: int = field(default=0, init=False)
    """Increases when there is something new to show."""
    wanted: float = field(default=0.0, init=False)
    """When a page last requested its charts."""

    def __post_init__(self) -> None:
        self.name = self.root.name(self.path)
        self.id = make_run_id(self.name)

    def touch(self) -> None:
        """Note that a page wants it."""
        self.wanted = time.monotonic()


POINTS = 800
"""Buckets of a chart if the page does not say how wide it is."""
DETAIL = 8192
"""Buckets kept for each series of another tool's log."""


@dataclass
class ForeignRun(RunEntry):
    """The log of another tool: read whole, and again when it changes."""

    problem: str = field(default="", init=False)
    """Why it cannot be read; empty if it can."""
    _changed: float = field(default=0.0, init=False)
    _known: tuple[float, int] | None = field(default=None, init=False)
    _report: Report | None = field(default=None, init=False)
    _data: ChartData | None = field(default=None, init=False)

    @property
    def source(self) -> str:
        """The tool whose log it is."""
        if self._data is not None and self._data.source:
            return self._data.source
        return "log"

    @property
    def changed(self) -> float:
        """When it was last written to."""
        return self._changed

    def due(self) -> bool:
        """Whether it must be read, or read again."""
        try:
            about = self.path.stat()
        except OSError:
            return False
        self._changed = about.st_mtime
        return (about.st_mtime, about.st_size) != self._known and self.root.holds(self.path)

    def look(self) -> None:
        """Read it."""
        from headway.postmortem.diagnose import diagnose

        about = self.path.stat()
        report, data, problem = None, None, ""
        try:
            report = diagnose(self.path)
            if report.reread is not None:
                data = build_charts(report.reread(), DETAIL)
        except (HeadwayError, OSError) as error:
            problem = str(error)
        with self.lock:
            self._report, self._data, self.problem = report, data, problem
            self._known = (about.st_mtime, about.st_size)
            self.version += 1

    def state(self) -> str:
        """`running` while it is written to."""
        if self.problem:
            return "unreadable"
        return "running" if time.time() - self._changed < IDLE_SECONDS else "ended"

    def latest(self) -> dict[str, Any]:
        """The last step and its loss."""
        data = self._data
        if data is None or not data.series:
            return {}
        last: dict[str, Any] = {"step": data.end}
        loss = data.series.get("loss")
        if loss is not None:
            _, y = loss.points()
            last["loss"] = float(y[-1]) if len(y) else None
        return last

    def figures(self) -> RunFigures:
        """Best loss, duration and so on."""
        return RunFigures() if self._data is None else RunFigures.from_charts(self._data)

    def facts(self) -> Mapping[str, Any]:
        """The settings in the log."""
        return {} if self._data is None else self._data.facts

    def note(self) -> str:
        """Empty: notes are kept next to our own runs."""
        return ""

    def guard(self) -> dict[str, Any]:
        """Empty: the run had no guard."""
        return {}

    def progress(self) -> tuple[float, float]:
        """(drawn, checked): 0 before it is read, then 1."""
        done = 0.0 if self._known is None else 1.0
        return done, done

    def report(self) -> Report | None:
        """The report; None before it is read."""
        return self._report

    @property
    def report_version(self) -> int:
        """Increases when it is read again."""
        return self.version

    def charts(
        self,
        low: int | None,
        high: int | None,
        buckets: int = POINTS,
        *,
        maps: bool = False,
        beside: int = 1,
    ) -> ChartData | None:
        """The chart data; None before it is read."""
        with self.lock:
            data = self._data
            if data is None:
                return None
            if low is None or high is None:
                low, high = 0, data.end
            return cut_window(data, low, high, buckets)
