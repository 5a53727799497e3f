"""Turns a stream of records into the data of charts, in bounded memory, and cuts windows out of
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headway.core.incident_events import INCIDENT
from headway.core.records import EventRecord, Header, Record, SetupRecord, StepRecord
from headway.core.signals import family
from headway.rundir.downsample import (
    BUCKETS,
    CELLS,
    Downsampler,
    Floats,
    HeatMap,
    HeatSampler,
    Ints,
)
from headway.rundir.step_columns import StepColumns, TensorColumns
from headway.rundir.timeline import MAX_X, AxisJump, Timeline, find_offset

# From a stream of records, however long, to what a chart shows. Memory does not grow with the
# run.

# The report on a run, the live page and the view in a terminal draw the same: they all begin here.

MAX_SERIES = 64
"""Components and metrics are named by users: a hundred charts help nobody."""
MAX_MARKS = 400
"""Events kept from the beginning, and as many from the end."""
MAX_INCIDENTS = 20
MANY_TENSORS = 1024
"""A heat map of more keeps no more cells than are drawn."""
MAPS = ("param/grad_norm", "param/update_ratio")
CHARTED_SIGNALS = (
    "loss",
    "grad_norm",
    "clipped_grad_norm",
    "lr",
    "loss_scale",
    "device_allocated_bytes",
    "host_rss_bytes",
)
"""Signals with a place of their own on a page."""
USER_NAMED_FAMILIES = ("loss", "eval")
"""Families whose members a user has named: `loss/box`, `eval/accuracy`."""
EVENTS_WITHOUT_MARK = ("scan", "axis", "checkpoint", "places", "end", INCIDENT)
"""Events that are no marks: bookkeeping, or told elsewhere."""
SETUPS = ("precision", "optimizer")
"""Set-up facts that belong to the description of a run."""
AFTER_CLIPPING = "clipped_grad_norm"


@dataclass(frozen=True, slots=True)
class ChartMark:
    """Something that happened, on the axis of the charts."""

    x: int
    step: int
    kind: str
    label: str


@dataclass
class ChartData:
    """What there is to draw of a run."""

    series: dict[str, Downsampler] = field(default_factory=dict)
    maps: dict[str, HeatMap] = field(default_factory=dict)
    marks: list[ChartMark] = field(default_factory=list)
    marks_left_out: int = 0
    incidents: list[EventRecord] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What the header and the set-up said about the run."""
    source: str = ""
    jumps: list[AxisJump] = field(default_factory=list)
    steps: int = 0
    """Records of steps that were read."""
    held: Downsampler = field(default_factory=Downsampler)
    """The steps whose update was held back."""
    end: int = 0
    series_left_out: int = 0
    progress: float = 1.0
    """How much of the run has been read; the rest is a sample of it."""

    @property
    def exact(self) -> bool:
        """Whether all of the run is in it."""
        return self.progress >= 1.0

    def place(self, order: tuple[int, int], step: int) -> int:
        """Where a finding of that order and step stands on the axis."""
        return step + find_offset(self.jumps, order)


class ChartBuilder:
    """Reads a stream once. `data()` may be asked for at any time: a live page does."""

    def __init__(self, buckets: int = BUCKETS, cells: int = CELLS) -> None:
        """`buckets` of each signal, and `cells` of each heat map along the steps."""
        self._buckets = buckets
        self._cells = cells
        self._data = ChartData(held=Downsampler(buckets))
        self._timeline = Timeline()
        self._maps: dict[str, HeatSampler] = {}
        self._header: Header | None = None
        self._first: list[ChartMark] = []
        self._last: deque[ChartMark] = deque(maxlen=MAX_MARKS)
        self._marks = 0
        self._refused: set[str] = set()
        self._coming: deque[Header] = deque()

    def feed(self, record: Record) -> None:
        """One more record."""
        if isinstance(record, StepRecord):
            if not self._of_another_rank(record):
                self._step(record)
        elif isinstance(record, Header):
            if not self._of_another_rank(record):
                self._take_header(record)
        elif isinstance(record, EventRecord):
            self._event(record)
        elif isinstance(record, SetupRecord) and record.topic in SETUPS:
            self._data.facts.setdefault(record.topic, dict(record.facts))

    @property
    def axis(self) -> Timeline:
        """Which step stands where."""
        return self._timeline

    def feed_rows(self, rows: StepColumns, x: Ints | None = None) -> Ints:
        """Many steps at once, those of the rank that is drawn. `x`: where they stand, if known.

        Gives back where each stands; −1 for one that cannot be drawn.
        """
        if x is None:
            x = self._timeline.xs(rows.segment, rows.seq, rows.step)
        drawn = x >= 0
        self._data.steps += int(np.count_nonzero(drawn))
        for name, (at, numbers) in rows.values.items():
            known = self._data.series.get(name) or self._series(name)
            if known is not None:
                _extend(known, x[at], numbers)
        self._rows_after_clipping(rows, x)
        if rows.held.any():
            where = x[rows.held & drawn]
            self._data.held.extend(where, np.ones(len(where)))
        for look in rows.looks:
            if drawn[look.row]:
                self._look(look, rows, int(x[look.row]))
        return x

    def _look(self, look: TensorColumns, rows: StepColumns, x: int) -> None:
        self._name_rows((int(rows.segment[look.row]), int(rows.seq[look.row])))
        for name in MAPS:
            column = look.column(name)
            if column is not None:
                self._map(name).add(x, *column)

    def _name_rows(self, order: tuple[int, int]) -> None:
        """Headers that came before their steps were read are in force from their place on."""
        while self._coming and (self._coming[0].segment, self._coming[0].seq) <= order:
            self._take_header(self._coming.popleft())

    def expect(self, header: Header) -> None:
        """A later header, told before the steps that come before it."""
        if not self._of_another_rank(header):
            self._coming.append(header)

    def apply_pending_headers(self) -> None:
        """All that comes from here on comes after the headers that were told."""
        while self._coming:
            self._take_header(self._coming.popleft())

    def _rows_after_clipping(self, rows: StepColumns, x: Ints) -> None:
        if not {"clip_coef", "grad_norm"} <= rows.values.keys() or AFTER_CLIPPING in rows.values:
            return
        (at, norms), (other, factors) = rows.values["grad_norm"], rows.values["clip_coef"]
        both, first, second = np.intersect1d(at, other, assume_unique=True, return_indices=True)
        series = self._data.series.setdefault(AFTER_CLIPPING, Downsampler(self._buckets))
        with np.errstate(over="ignore", invalid="ignore"):
            _extend(series, x[both], norms[first] * factors[second])

    def data(self) -> ChartData:
        """All that has been gathered so far."""
        data = self._data
        data.marks = [*self._first, *self._last]
        data.marks_left_out = self._marks - len(data.marks)
        data.jumps, data.end = self._timeline.jumps, self._timeline.end
        data.series_left_out = len(self._refused)
        pictures = {name: sampler.picture() for name, sampler in self._maps.items()}
        data.maps = {name: drawn for name, drawn in pictures.items() if drawn is not None}
        return data

    def _of_another_rank(self, record: Header | StepRecord) -> bool:
        """Ranks that decide together write the same steps: one of them is drawn."""
        header = self._header
        return header is not None and header.world_size > 1 and record.rank != header.rank

    def _take_header(self, header: Header) -> None:
        self._header = header
        self._data.source = header.source
        self._data.facts.update(header.facts)
        if header.world_size > 1:
            self._data.facts["world_size"] = header.world_size
        for sampler in self._maps.values():
            sampler.axis(_names(header))

    def _step(self, record: StepRecord) -> None:
        x = self._timeline.x(record.segment, record.seq, record.step)
        if x is None:
            return
        self._data.steps += 1
        series = self._data.series
        for name, value in record.values.items():
            known = series.get(name) or self._series(name)
            if known is not None:
                known.add(x, value)
        if "clip_coef" in record.values:
            self._after_clipping(x, record.values)
        if record.held:
            self._data.held.add(x, 1.0)
        for name in MAPS:
            column = record.columns.get(name)
            if column is not None:
                self._map(name).add(x, column.values, column.index)

    def _series(self, name: str) -> Downsampler | None:
        """A series for a name that has not been seen; None for what is not drawn."""
        prefix, slash, _ = name.partition("/")
        if family(name) not in CHARTED_SIGNALS and not (slash and prefix in USER_NAMED_FAMILIES):
            return None
        series = self._data.series
        if len(series) >= MAX_SERIES and name not in CHARTED_SIGNALS:
            if len(self._refused) < MAX_SERIES:
                self._refused.add(name)
            return None
        return series.setdefault(name, Downsampler(self._buckets))

    def _after_clipping(self, x: int, values: Mapping[str, float]) -> None:
        """Our own runs tell the factor; people want to see the norm that was left."""
        if "grad_norm" in values and AFTER_CLIPPING not in values:
            left = values["grad_norm"] * values["clip_coef"]
            self._data.series.setdefault(AFTER_CLIPPING, Downsampler(self._buckets)).add(x, left)

    def _map(self, name: str) -> HeatSampler:
        known = self._maps.get(name)
        if known is None:
            names = [] if self._header is None else _names(self._header)
            cells = self._cells if len(names) <= MANY_TENSORS else CELLS
            known = self._maps[name] = HeatSampler(cells)
            known.axis(names)
        return known

    def _event(self, record: EventRecord) -> None:
        if record.kind == INCIDENT and len(self._data.incidents) < MAX_INCIDENTS:
            self._data.incidents.append(record)
        if record.kind in EVENTS_WITHOUT_MARK or self._of_other_event(record):
            return
        # An event may look back at a step: it has a place, and moves nothing.
        x = self._timeline.place((record.segment, record.seq), record.step)
        mark = ChartMark(min(x, self._timeline.end), record.step, record.kind, _label(record))
        self._marks += 1
        (self._first if len(self._first) < MAX_MARKS else self._last).append(mark)

    def _of_other_event(self, record: EventRecord) -> bool:
        """What all ranks did at once is told by one of them."""
        header = self._header
        together = header is not None and header.world_size > 1 and record.rank != header.rank
        return together and record.kind == "action"


def _extend(series: Downsampler, x: Ints, y: Floats) -> None:
    drawn = x >= 0
    if drawn.all():
        series.extend(x, y)
    elif drawn.any():
        series.extend(x[drawn], y[drawn])


def build_charts(records: Iterable[Record], buckets: int = BUCKETS) -> ChartData:
    """A whole stream."""
    gatherer = ChartBuilder(buckets)
    for record in records:
        gatherer.feed(record)
    return gatherer.data()


def _names(header: Header) -> list[str]:
    return [str(name) for name in header.names("param")]


def _label(record: EventRecord) -> str:
    """A few words for an event: what was done and why."""
    data = record.data
    done = data.get("action")
    words = [str(done)] if isinstance(done, str) else [record.kind.replace("-", " ")]
    for key in ("reason", "text", "message", "note"):
        if isinstance(data.get(key), str):
            words.append(data[key])
            break
    return ": ".join(words)[:300]


# A stretch of what has been gathered, in as many points as are wanted.


def clamp_window(data: ChartData, first: int | None, last: int | None) -> tuple[int, int]:
    """Where a window begins and ends that may be asked for with anything."""
    begin = 0 if first is None else min(max(first, 0), MAX_X)
    end = data.end if last is None else min(max(last, 0), MAX_X)
    return begin, max(end, begin)


def cut_window(data: ChartData, begin: int, end: int, points: int) -> ChartData:
    """What there is to draw of it between two places, both included."""
    return replace(
        data,
        series={name: series.narrowed(begin, end, points) for name, series in data.series.items()},
        held=data.held.narrowed(begin, end, points),
        marks=[mark for mark in data.marks if begin <= mark.x <= end],
        maps={
            name: cut
            for name, picture in data.maps.items()
            if (cut := _cut_heat_map(picture, begin, end)) is not None
        },
    )


def _cut_heat_map(picture: HeatMap, begin: int, end: int) -> HeatMap | None:
    """The cells of a stretch."""
    first = max((begin - picture.start) // picture.width, 0)
    last = (end - picture.start) // picture.width
    codes = picture.codes[:, first : max(last + 1, first)]
    if not codes.shape[1]:
        return None
    start, width = picture.start + first * picture.width, picture.width
    size = -(-codes.shape[1] // CELLS)
    if size > 1:  # the codes are in the order of what they stand for: the worst stays
        codes = np.maximum.reduceat(codes, np.arange(0, codes.shape[1], size), axis=1)
        width *= size
    return replace(picture, start=start, width=width, codes=codes)


@dataclass(frozen=True)
class ChartUpdate:
    """What `since` answers."""

    cursor: str
    """What to ask with the next time."""
    reset: bool
    """What is known of the run is void or too old: ask for a window."""
    data: ChartData | None = None
    """Only what is new; None: nothing is."""
