"""The numbers of one run, for charts: the one place that knows how they are read.

Whoever draws asks an object of this file: read on for a moment; how far have you come; give me the
timeline between two places in at most so many points. How that is done quickly for a run of a
million steps stands in `charts/live.py`; here stands what the page may open.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.charts.gather import ChartData, Gatherer
from headway.charts.live import LiveTimeline
from headway.core.records import Record
from headway.web.inside import Root

POINTS = 800
"""Buckets of a chart, where the page does not say how wide it is."""
DETAIL = 8192
"""Buckets kept of each series of another tool's log."""
LOOK_AGAIN = 2.0
"""Seconds after which the files are looked at once more."""


@dataclass
class Charts:
    """What there is to draw of a run directory, as far as it has been read."""

    root: Root
    path: Path
    _timeline: LiveTimeline = field(init=False)
    _cursor: str = field(default="", init=False)
    _looked: float = field(default=-LOOK_AGAIN, init=False)
    _sound: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._timeline = LiveTimeline(self.path)

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
        if now - self._looked > LOOK_AGAIN:
            self._looked = now
            self._sound = self.root.sound(self.path)
        return self._sound


def gathered(records: Iterable[Record]) -> ChartData:
    """What there is to draw of the log of another tool, read as a whole."""
    gatherer = Gatherer(DETAIL)
    for record in records:
        gatherer.feed(record)
    return gatherer.data()


def narrowed(data: ChartData, low: int, high: int, points: int) -> ChartData:
    """A part of what has been gathered."""
    return replace(
        data,
        series={
            name: series.narrowed(low, high, points) for name, series in list(data.series.items())
        },
        held=data.held.narrowed(low, high, points),
    )
