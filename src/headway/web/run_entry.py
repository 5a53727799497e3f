"""What all runs on the page share: an id that is not a path, and the data of their charts."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.core.records import Record
from headway.rundir.chart_data import ChartBuilder, ChartData
from headway.rundir.live_charts import LiveCharts
from headway.web.file_access import ServedFolder

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
