"""Builds the data of charts from a stream of records, in bounded memory; the report, the live page
and `headway watch` draw the same data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headway.core.ending_facts import END
from headway.core.incident_events import INCIDENT, TRACED
from headway.core.model_facts import ParameterFacts
from headway.core.records import EventRecord, Header, Record, SetupRecord, StepRecord
from headway.core.signals import GPU_SIGNALS, HOST_SIGNALS, family
from headway.rundir.derived_series import derive_columns, derive_values
from headway.rundir.downsample import BUCKETS, Downsampler, Floats, Ints
from headway.rundir.heat_map import CELLS, HeatMap, HeatSampler, cut_heat_map
from headway.rundir.rank_machines import MachineSeries, cut_machines
from headway.rundir.step_columns import StepColumns, TensorColumns
from headway.rundir.timeline import MAX_X, AxisJump, Timeline, find_offset

MAX_SERIES = 64
"""Maximum number of series: users name components and metrics, so their number is not bounded."""
MAX_MARKS = 400
"""Events kept from the start, and as many from the end."""
MAX_INCIDENTS = 20
MANY_TENSORS = 1024
"""A heat map of more tensors keeps no more cells than are drawn."""
MAPS = ("param/grad_norm", "param/update_ratio", "param/weight_norm")
NONFINITE_SHARE = "param/nonfinite_share"
"""The share of the measurements in a cell whose gradient norm is not finite."""
CHARTED_SIGNALS = (
    "loss",
    "grad_norm",
    "clipped_grad_norm",
    "lr",
    "loss_scale",
    "device_allocated_bytes",
    "host_rss_bytes",
    "samples_per_s",
    "tokens_per_s",
    *HOST_SIGNALS,
    *GPU_SIGNALS,
)
"""Signals with a panel of their own."""
USER_NAMED_FAMILIES = ("loss", "eval")
"""Families whose members users name: `loss/box`, `eval/accuracy`."""
EVENTS_WITHOUT_MARK = ("scan", "axis", "checkpoint", "places", END, INCIDENT, TRACED)
"""Events that are not marked: bookkeeping, or shown elsewhere."""
SETUPS = ("precision", "optimizer")
"""Set-up facts that describe the run."""
STEP_TIME, SAMPLES, TOKENS = "step_time_s", "samples_per_s", "tokens_per_s"
COUNTED = (("samples", SAMPLES), ("tokens", TOKENS))
"""Quantities that are summed over the steps, and the signal with the rate of each."""
CLOCK_POINTS = 200
"""Buckets of another x axis; in between it is interpolated."""


@dataclass(frozen=True, slots=True)
class ChartMark:
    """An event on the axis of the charts."""

    x: int
    step: int
    kind: str
    label: str


@dataclass
class ChartData:
    """The chart data of a run."""

    series: dict[str, Downsampler] = field(default_factory=dict)
    maps: dict[str, HeatMap] = field(default_factory=dict)
    layer_types: dict[str, str] = field(default_factory=dict)
    """The class of the module that has a parameter, by the parameter's name."""
    marks: list[ChartMark] = field(default_factory=list)
    marks_left_out: int = 0
    incidents: list[EventRecord] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts from the header and the set-up records."""
    source: str = ""
    jumps: list[AxisJump] = field(default_factory=list)
    steps: int = 0
    """Step records that were read."""
    held: Downsampler = field(default_factory=Downsampler)
    """The steps whose update was skipped."""
    skipped: int = 0
    """Their number."""
    ending: str = ""
    """How the run ended, as it recorded itself: `finished`, …; empty while it runs."""
    clocks: dict[str, Downsampler] = field(default_factory=dict)
    """Other x axes, as the value at each x: seconds of training (`time`), `samples`."""
    ranks: dict[int, MachineSeries] = field(default_factory=dict)
    """How busy the machine of each other rank is."""
    hosts: dict[int, str] = field(default_factory=dict)
    """The host of each rank that has named it."""
    end: int = 0
    series_left_out: int = 0
    progress: float = 1.0
    """The share of the run that has been read; the rest is drawn from a sample."""

    @property
    def exact(self) -> bool:
        """Whether the whole run has been read."""
        return self.progress >= 1.0

    def place(self, order: tuple[int, int], step: int) -> int:
        """The x of a finding."""
        return step + find_offset(self.jumps, order)


class ChartBuilder:
    """Reads a stream once. `data()` may be called at any time."""

    def __init__(self, buckets: int = BUCKETS, cells: int = CELLS) -> None:
        """Keeps `buckets` per signal and `cells` along the steps of a heat map."""
        self._buckets = buckets
        self._cells = cells
        self._data = ChartData(held=Downsampler(buckets))
        self._timeline = Timeline()
        self._maps: dict[str, HeatSampler] = {}
        self._header: Header | None = None
        self._first: list[ChartMark] = []
        self._last: deque[ChartMark] = deque(maxlen=MAX_MARKS)
        self._marks = 0
        self._spent: dict[str, float] = {}
        self._refused: set[str] = set()
        self._coming: deque[Header] = deque()

    def feed(self, record: Record) -> None:
        """Add one record."""
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
        elif isinstance(record, SetupRecord) and record.topic == ParameterFacts.topic:
            facts = ParameterFacts.of(record)
            self._data.layer_types |= zip(facts.names, facts.types, strict=False)

    @property
    def axis(self) -> Timeline:
        """The axis: which step is at which x."""
        return self._timeline

    def feed_rows(self, rows: StepColumns, x: Ints | None = None) -> Ints:
        """Add many steps of the rank that is drawn; `x` if it is known.

        Returns the x of each; −1 for a step that cannot be drawn.
        """
        if x is None:
            x = self._timeline.xs(rows.segment, rows.seq, rows.step)
        drawn = x >= 0
        self._data.steps += int(np.count_nonzero(drawn))
        for name, (at, numbers) in rows.values.items():
            known = self._data.series.get(name) or self._series(name)
            if known is not None:
                _extend(known, x[at], numbers)
        for name, at, numbers in derive_columns(rows.values):
            _extend(self._derived(name), x[at], numbers)
        self._run_clocks(rows, x)
        if rows.held.any():
            where = x[rows.held & drawn]
            self._data.skipped += len(where)
            self._data.held.extend(where, np.ones(len(where)))
        for step in rows.tensor_steps:
            if drawn[step.row]:
                self._feed_tensors(step, rows, int(x[step.row]))
        return x

    def _feed_tensors(self, step: TensorColumns, rows: StepColumns, x: int) -> None:
        self._name_rows((int(rows.segment[step.row]), int(rows.seq[step.row])))
        for name in MAPS:
            column = step.column(name)
            if column is not None:
                self._map(name).add(x, *column)

    def _name_rows(self, order: tuple[int, int]) -> None:
        """Apply the headers that were read before their steps."""
        while self._coming and (self._coming[0].segment, self._coming[0].seq) <= order:
            self._take_header(self._coming.popleft())

    def expect(self, header: Header) -> None:
        """Add a header that applies only after steps that are still to come."""
        if not self._of_another_rank(header):
            self._coming.append(header)

    def apply_pending_headers(self) -> None:
        """Apply all expected headers: later records follow them."""
        while self._coming:
            self._take_header(self._coming.popleft())

    def _run_clocks(self, rows: StepColumns, x: Ints) -> None:
        """Sum the time, the samples and the tokens of the steps."""
        if STEP_TIME not in rows.values:
            return
        at, seconds = rows.values[STEP_TIME]
        self._clock("time", x[at], seconds)
        for name, signal in COUNTED:
            if signal not in rows.values:
                continue
            other, speed = rows.values[signal]
            both, first, second = np.intersect1d(at, other, assume_unique=True, return_indices=True)
            with np.errstate(over="ignore", invalid="ignore"):
                self._clock(name, x[both], seconds[first] * speed[second])

    def _tick(self, name: str, x: int, spent: float) -> None:
        so_far = self._spent.get(name, 0.0) + spent
        if spent >= 0 and math.isfinite(so_far):
            self._spent[name] = so_far
            self._data.clocks.setdefault(name, Downsampler(CLOCK_POINTS)).add(x, so_far)

    def _clock(self, name: str, x: Ints, spent: Floats) -> None:
        valid = (x >= 0) & np.isfinite(spent) & (spent >= 0)
        if not valid.any():
            return
        so_far = self._spent.get(name, 0.0) + np.cumsum(spent[valid])
        if np.isfinite(so_far[-1]):
            self._spent[name] = float(so_far[-1])
            clock = self._data.clocks.setdefault(name, Downsampler(CLOCK_POINTS))
            clock.extend(x[valid], so_far)

    def data(self, *, maps: bool = True) -> ChartData:
        """The chart data so far, with heat maps or without."""
        data = self._data
        data.marks = [*self._first, *self._last]
        data.marks_left_out = self._marks - len(data.marks)
        data.jumps, data.end = self._timeline.jumps, self._timeline.end
        data.series_left_out = len(self._refused)
        data.maps = self._pictures() if maps else {}
        return data

    def _pictures(self) -> dict[str, HeatMap]:
        pictures = {name: self._maps[name].picture() for name in MAPS if name in self._maps}
        if MAPS[0] in self._maps:
            pictures[NONFINITE_SHARE] = self._maps[MAPS[0]].nonfinite_shares()
        return {name: drawn for name, drawn in pictures.items() if drawn is not None}

    def _of_another_rank(self, record: Header | StepRecord) -> bool:
        """Ranks of one training write the same steps, so only one of them is drawn."""
        header = self._header
        return header is not None and header.world_size > 1 and record.rank != header.rank

    def _take_header(self, header: Header) -> None:
        self._header = header
        self._data.source = header.source
        self._data.ending = ""  # a run that is resumed goes on
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
        for name, value in derive_values(record.values):
            self._derived(name).add(x, value)
        if STEP_TIME in record.values:
            seconds = record.values[STEP_TIME]
            self._tick("time", x, seconds)
            for name, signal in COUNTED:
                if signal in record.values:
                    self._tick(name, x, seconds * record.values[signal])
        if record.held:
            self._data.held.add(x, 1.0)
            self._data.skipped += 1
        for name in MAPS:
            column = record.columns.get(name)
            if column is not None:
                self._map(name).add(x, column.values, column.index)

    def _series(self, name: str) -> Downsampler | None:
        """A series for a new name; None if it is not drawn."""
        prefix, slash, _ = name.partition("/")
        if family(name) not in CHARTED_SIGNALS and not (slash and prefix in USER_NAMED_FAMILIES):
            return None
        series = self._data.series
        if len(series) >= MAX_SERIES and name not in CHARTED_SIGNALS:
            if len(self._refused) < MAX_SERIES:
                self._refused.add(name)
            return None
        return series.setdefault(name, Downsampler(self._buckets))

    def _derived(self, name: str) -> Downsampler:
        return self._data.series.setdefault(name, Downsampler(self._buckets))

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
        if record.kind == END:
            self._data.ending = str(record.data.get("status", ""))[:40]
        if record.kind in EVENTS_WITHOUT_MARK or self._of_other_event(record):
            return
        # An event may refer to an earlier step, so it does not move the axis.
        x = self._timeline.place((record.segment, record.seq), record.step)
        mark = ChartMark(min(x, self._timeline.end), record.step, record.kind, _label(record))
        self._marks += 1
        (self._first if len(self._first) < MAX_MARKS else self._last).append(mark)

    def _of_other_event(self, record: EventRecord) -> bool:
        """An action of all ranks is marked once."""
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
    """The chart data of a whole stream."""
    builder = ChartBuilder(buckets)
    for record in records:
        builder.feed(record)
    return builder.data()


def _names(header: Header) -> list[str]:
    return [str(name) for name in header.names("param")]


def _label(record: EventRecord) -> str:
    """A label for an event: the action and the reason."""
    data = record.data
    done = data.get("action")
    words = [str(done)] if isinstance(done, str) else [record.kind.replace("-", " ")]
    for key in ("reason", "text", "message", "note"):
        if isinstance(data.get(key), str):
            words.append(data[key])
            break
    return ": ".join(words)[:300]


def clamp_window(data: ChartData, first: int | None, last: int | None) -> tuple[int, int]:
    """The start and end of a window, from untrusted numbers."""
    begin = 0 if first is None else min(max(first, 0), MAX_X)
    end = data.end if last is None else min(max(last, 0), MAX_X)
    return begin, max(end, begin)


def cut_window(data: ChartData, begin: int, end: int, points: int) -> ChartData:
    """The chart data between two x, both included."""
    return replace(
        data,
        series={name: series.narrowed(begin, end, points) for name, series in data.series.items()},
        held=data.held.narrowed(begin, end, points),
        ranks=cut_machines(data.ranks, begin, end),
        marks=[mark for mark in data.marks if begin <= mark.x <= end],
        maps={
            name: cut
            for name, picture in data.maps.items()
            if (cut := cut_heat_map(picture, begin, end)) is not None
        },
    )


@dataclass(frozen=True)
class ChartUpdate:
    """The answer of `LiveCharts.since`."""

    cursor: str
    """The cursor for the next call."""
    reset: bool
    """Whether the caller's data is outdated, so that it must request a window."""
    data: ChartData | None = None
    """The new data; None if there is none."""
