"""The numbers of one run, for charts: the one place that knows how they are read.

Whoever draws asks an object of this file: read on for a moment; how far have you come; give me the
timeline between two places in at most so many points. A quicker reader is put in here, and nothing
else of the page changes.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.charts.gather import ChartData, Gatherer
from holdfast.charts.timeline import Timeline
from holdfast.core.codec import NO_RECORD, from_json
from holdfast.core.records import Record, StepRecord
from holdfast.web.inside import Root
from holdfast.web.ordered import PIECE, Ordered, header_of

DETAIL = 12_000
"""Buckets kept of each series: a tenth of a run can be shown without reading it again."""
POINTS = 800
"""Buckets of a chart, where the page does not say how wide it is."""
SIGNPOSTS = 256
"""Steps from one remembered place in the file to the next."""
MOST_AGAIN = 150_000
"""Steps that are read again for a look at a part of the run."""


@dataclass
class Charts:
    """What there is to draw of a run directory, as far as it has been read."""

    root: Root
    path: Path
    _stream: Ordered = field(init=False)
    _gatherer: Gatherer = field(init=False)
    _timeline: Timeline = field(init=False)
    _signs: list[tuple[int, int]] = field(default_factory=list, init=False)
    """(x, place in the file of steps), every so many steps."""
    _steps: int = field(default=0, init=False)
    _data: ChartData | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._stream = Ordered(self.root, self.path)
        self._gatherer = Gatherer(DETAIL)
        self._timeline = Timeline()

    @property
    def read(self) -> tuple[int, int]:
        """Bytes read, and bytes there are."""
        return self._stream.read

    @property
    def torn(self) -> int:
        """Lines that could not be read."""
        return self._stream.torn

    def advance(self, seconds: float) -> int:
        """Read on for about so long; how many records came. Raises `Replaced`."""
        until = time.monotonic() + seconds
        count = 0
        for place, record in self._stream.records():
            self._take(place, record)
            count += 1
            if count % 64 == 0 and time.monotonic() > until:
                break
        if count:
            self._data = None
        return count

    def whole(self) -> ChartData:
        """All of it, in the detail that is kept."""
        if self._data is None:
            self._data = self._gatherer.data()
        return self._data

    def between(self, low: int | None, high: int | None, buckets: int = POINTS) -> ChartData:
        """The run, or a part of it, in at most so many buckets. No spike and no NaN is lost."""
        data = self.whole()
        if low is None or high is None or (low <= 0 and high >= data.end):
            return narrowed(data, 0, data.end, buckets)
        widest = max((series.width for series in data.series.values()), default=1)
        coarse = widest > 1 and (high - low) // widest < buckets // 2
        if coarse and high - low <= MOST_AGAIN:
            return self._again(data, low, high, buckets)
        return narrowed(data, low, high, buckets)

    def _take(self, place: int, record: Record) -> None:
        self._gatherer.feed(record)
        if isinstance(record, StepRecord):
            x = self._timeline.x(record.segment, record.seq, record.step)
            if x is not None and self._steps % SIGNPOSTS == 0:
                self._signs.append((x, place))
            self._steps += 1

    def _again(self, data: ChartData, low: int, high: int, buckets: int) -> ChartData:
        """The part as the file has it."""
        at = max(bisect_right(self._signs, (low, 1 << 62)) - 1, 0)
        start = self._signs[at][1] if self._signs else 0
        part = Gatherer(buckets)
        header = header_of(self.root, self.path)
        if header is not None:
            part.feed(header)
        for record in self._steps_from(start):
            x = data.place((record.segment, record.seq), record.step)
            if x > high:
                break
            if x >= low:
                # As x only rises, the part has no turns: they are those of the whole.
                part.feed(replace(record, step=x))
        drawn = part.data()
        return _with_surroundings(drawn, data)

    def _steps_from(self, place: int) -> Iterator[StepRecord]:
        file = self.root.open(self._stream.steps.path)
        if file is None:
            return
        with file:
            file.seek(place)
            end = self._stream.steps.place
            while file.tell() < end and (lines := file.readlines(PIECE)):
                for line in lines:
                    try:
                        record = from_json(json.loads(line))
                    except NO_RECORD:
                        continue
                    if isinstance(record, StepRecord):
                        yield record


def gathered(records: Iterable[Record]) -> ChartData:
    """What there is to draw of the log of another tool, read as a whole."""
    gatherer = Gatherer(DETAIL)
    for record in records:
        gatherer.feed(record)
    return gatherer.data()


def narrowed(data: ChartData, low: int, high: int, buckets: int) -> ChartData:
    """A part of what has been gathered."""
    part = ChartData(
        series={
            name: series.between(low, high, buckets) for name, series in list(data.series.items())
        },
        maps=data.maps,
        held=data.held.between(low, high, buckets),
        steps=data.steps,
    )
    return _with_surroundings(part, data)


def _with_surroundings(part: ChartData, whole: ChartData) -> ChartData:
    """What is the same, however much of the run is looked at."""
    part.marks, part.marks_left_out = whole.marks, whole.marks_left_out
    part.incidents, part.facts, part.source = whole.incidents, whole.facts, whole.source
    part.turns, part.end = whole.turns, whole.end
    part.series_left_out = whole.series_left_out
    return part
