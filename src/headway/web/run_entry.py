"""Runs on the live page: what all of them share, and logs of other tools."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.records import Record
from headway.errors import HeadwayError
from headway.report import Report
from headway.rundir.chart_data import ChartBuilder, ChartData
from headway.rundir.live_charts import LiveCharts
from headway.web.access import ServedFolder

# What all runs on the page share: an id that is not a path, and the data of their charts.

# What every entry of the page has: a place below the folder, a name, and an id that is no path.

IDLE_SECONDS = 60.0
"""Seconds without a line after which a run is not said to be running."""


def make_run_id(name: str) -> str:
    """What a run is called in an address: no path is ever one."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass
class RunEntry:
    """Something that is shown."""

    root: ServedFolder
    path: Path
    id: str = field(init=False)
    name: str = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    version: int = field(default=0, init=False)
    """Rises when there is something new to show."""

    def __post_init__(self) -> None:
        self.name = self.root.name(self.path)
        self.id = make_run_id(self.name)


# The numbers of one run, for charts: the one place that knows how they are read.

# Whoever draws asks an object of this file: read on for a moment; how far have you come; give me
# the timeline between two places in at most so many points. How that is done quickly for a run of
# a million steps stands in `rundir/live_charts.py`; here stands what the page may open.

POINTS = 800
"""Buckets of a chart, where the page does not say how wide it is."""
DETAIL = 8192
"""Buckets kept of each series of another tool's log."""
RECHECK_SECONDS = 2.0
"""Seconds after which the files are looked at once more."""


@dataclass
class RunCharts:
    """What there is to draw of a run directory, as far as it has been read."""

    root: ServedFolder
    path: Path
    _timeline: LiveCharts = field(init=False)
    _cursor: str = field(default="", init=False)
    _looked: float = field(default=-RECHECK_SECONDS, init=False)
    _sound: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._timeline = LiveCharts(self.path)

    @property
    def progress(self) -> float:
        """How much of it has been read; 1 is all."""
        return self._timeline.progress if self._may_read() else 1.0

    def advance(self, seconds: float) -> bool:
        """Read on for about so long; whether anything new has come."""
        if not self._may_read():
            return False
        more = self._timeline.read(seconds)
        news = self._timeline.since(self._cursor)
        new = news.cursor != self._cursor
        self._cursor = news.cursor
        return more or new

    def between(self, low: int | None, high: int | None, points: int = POINTS) -> ChartData:
        """The run, or a part of it, in at most so many buckets. No spike and no NaN is lost."""
        if not self._may_read():
            return ChartData()
        return self._timeline.window(low, high, points)

    def _may_read(self) -> bool:
        """Whether all files are plain ones that lie where they seem to."""
        now = time.monotonic()
        if now - self._looked > RECHECK_SECONDS:
            self._looked = now
            self._sound = self.root.sound(self.path)
        return self._sound


def build_log_charts(records: Iterable[Record]) -> ChartData:
    """What there is to draw of the log of another tool, read as a whole."""
    gatherer = ChartBuilder(DETAIL)
    for record in records:
        gatherer.feed(record)
    return gatherer.data()


def cut_charts(data: ChartData, low: int, high: int, points: int) -> ChartData:
    """A part of what has been gathered."""
    return replace(
        data,
        series={
            name: series.narrowed(low, high, points) for name, series in list(data.series.items())
        },
        held=data.held.narrowed(low, high, points),
    )


# Another tool's log on the live page.


@dataclass
class ForeignRun(RunEntry):
    """The log of another tool: read as a whole, again when it has changed."""

    problem: str = field(default="", init=False)
    """Why it cannot be read."""
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
        """Whether it has to be read, or read again."""
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
                data = build_log_charts(report.reread())
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

    def touch(self) -> None:
        """Somebody looks at it: all of it is here already."""

    def guard(self) -> dict[str, Any]:
        """There was none."""
        return {}

    def progress(self) -> tuple[float, float]:
        """All or nothing."""
        done = 0.0 if self._known is None else 1.0
        return done, done

    def report(self) -> Report | None:
        """What was found."""
        return self._report

    @property
    def report_version(self) -> int:
        """Rises when it was read again."""
        return self.version

    def charts(self, low: int | None, high: int | None, buckets: int = POINTS) -> ChartData | None:
        """What there is to draw."""
        with self.lock:
            data = self._data
            if data is None:
                return None
            if low is None or high is None:
                low, high = 0, data.end
            return cut_charts(data, low, high, buckets)
