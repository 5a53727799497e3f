"""Charts of a run directory that may be huge and may still grow.

    charts = LiveCharts(RunDir(path))      opens nothing yet
    while charts.read(seconds=0.05): …     continues reading; True if there is more to read
    charts.progress                        0 … 1, the share of the file that was read
    charts.window(first, last, points)     the data of a part of the axis: a `ChartData`
    charts.since(cursor)                   the data since an earlier answer: a `ChartUpdate`

Each signal is kept as the minimum and maximum of some thousand buckets, plus every NaN and Inf, so
memory does not grow with the run. Where a window needs more detail, the file is read again at that
place, which a sparse index finds.

Before a run has been read, it is drawn from lines at some hundred places of its file (`data.exact`
is False, `data.progress` below 1). The exact chart then replaces the sample from left to right.

No content of the files is an error: a half-written line is read later, a line that is not a record
is skipped, and if a file is truncated or replaced everything restarts and `since` says so. `first`
and `last` are positions on the axis of the charts (see `timeline.py` for runs that go back). All
methods are thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import RLock

import numpy as np

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import EventRecord, Header, Record, SetupRecord
from headway.errors import UnreadableInput
from headway.rundir.chart_data import ChartBuilder, ChartData, ChartUpdate, clamp_window, cut_window
from headway.rundir.downsample import BUCKETS, Ints, join_series
from headway.rundir.heat_map import CELLS
from headway.rundir.rank_machines import RankMachines
from headway.rundir.run_files import FileTail, LineBlock, lines_between, sample_lines
from headway.rundir.run_reader import RunDir
from headway.rundir.step_columns import (
    SEQ_BITS,
    StepColumnReader,
    StepColumns,
    decode_steps,
    has_numbers,
)
from headway.rundir.timeline import StepIndex, find_offsets

STORED_BUCKETS = 16_384
"""Buckets kept for each signal."""
STORED_CELLS = 1024
"""Cells kept for a heat map; at most `CELLS` are drawn at once."""
MAX_COARSENESS = 3
"""A window is read again if its buckets are more than this many times too wide."""
SKETCH_PLACES, SKETCH_BYTES = 256, 1 << 11
"""Number of places, and of bytes at each, from which an unread run is drawn."""
CLOSE_ROWS = 200_000
"""A window with more steps is not read again."""
FEW_CELLS, MAP_ROWS = 40, 30_000
"""A window with fewer heat map cells and at most this many steps is read again, too."""
RECENT_ROWS = 20_000
"""Steps that `since` can return one by one."""
EVENT_BYTES_PER_READ = 1 << 18
MAX_EVENT_FILES = 2000
MAX_HEADERS = 100
MAX_PENDING_EVENTS = 10_000
"""Events kept until their steps are read."""


class LiveCharts:
    """The steps of one rank and the events of all, as charts."""

    def __init__(
        self,
        run: RunDir,
        *,
        rank: int = 0,
        buckets: int = STORED_BUCKETS,
        listener: Callable[[LineBlock, StepColumns], None] | None = None,
    ) -> None:
        """`listener` receives every block of the step file and its rows, once."""
        self.run = run
        self.rank = rank
        self._listener = listener
        self._buckets = buckets
        self._cells = STORED_CELLS if buckets > BUCKETS else CELLS
        self._lock = RLock()
        self._id = os.urandom(6).hex()
        self._begin()

    @property
    def header(self) -> Header | None:
        """The run's header; None before it is written."""
        return self._header

    @property
    def progress(self) -> float:
        """The share of the step file that has been read, by its size at the last read."""
        with self._lock:
            if not self._looked:
                return 0.0
            steps = self._steps
            # A half-written last line does not count as unread.
            return 1.0 if self._idle or not steps.size else steps.place / max(steps.size, 1)

    @property
    def end(self) -> int:
        """The largest x so far."""
        return self._builder.axis.end

    def read(self, seconds: float = 0.05, stop: Callable[[], bool] = lambda: False) -> bool:
        """Read for about `seconds`, or until `stop`; whether there is more to read at once."""
        until = time.monotonic() + seconds
        while True:
            with self._lock:
                self._take_header()
                self._looked = True
                more = self._read_events()
                more = self._read_steps() or more
                if not more and self._header is not None and self._header.world_size > 1:
                    more = self._machines.read(self._builder.axis.jumps)
                self._idle = not more
            if not more or time.monotonic() >= until or stop():
                return more

    def window(
        self,
        first: int | None = None,
        last: int | None = None,
        points: int = BUCKETS,
        *,
        maps: bool = True,
    ) -> ChartData:
        """The charts from `first` to `last`, both included; None stands for an end of the run.

        `points` is the number of buckets across the window, with at most two points each. Without
        `maps` the heat maps are left out, which takes a fraction of the time.
        """
        points = min(max(points, 2), self._buckets)
        with self._lock:
            if not self._looked:
                self.read(0.0)
            exact = self._builder.data(maps=maps)
            exact.progress = self.progress
            exact.ranks, exact.hosts = self._machines.series, self._hosts
            if exact.exact:
                return self._exact(exact, first, last, points)
            return self._sketched(exact, first, last, points, maps)

    def since(self, cursor: str) -> ChartUpdate:
        """What has been read since an earlier answer."""
        with self._lock:
            now = f"{self._id}.{self._renewals}.{self._rows_read}.{self._events_read}"
            asked = cursor.split(".")
            current = now.split(".")
            if len(asked) != 4 or asked[:2] != current[:2]:
                return ChartUpdate(now, reset=True)
            try:
                rows, events = int(asked[2]), int(asked[3])
            except ValueError:
                return ChartUpdate(now, reset=True)
            if rows == self._rows_read and events == self._events_read:
                return ChartUpdate(now, reset=False)
            if rows < self._rows_read - self._recent_rows or rows > self._rows_read:
                return ChartUpdate(now, reset=True)
            return ChartUpdate(now, reset=False, data=self._new(rows, events))

    # Reading.

    def _begin(self) -> None:
        """Forget everything that was read."""
        self._builder = ChartBuilder(self._buckets, self._cells)
        self._reader = StepColumnReader()
        self._steps = self.run.tail(f"steps.rank{self.rank}.jsonl")
        self._events: dict[str, tuple[FileTail, int]] = {}
        """File name: its tail, and the rank that wrote it."""
        self._machines = RankMachines(self.run, self.rank)
        self._hosts: dict[int, str] = {}
        self._index = StepIndex()
        self._header: Header | None = None
        self._headers: deque[Header] = deque(maxlen=MAX_HEADERS)
        """Later headers: a resumed run may name its tensors differently."""
        self._pending: deque[EventRecord | SetupRecord] = deque()
        self._recent: deque[tuple[int, StepColumns, Ints]] = deque()
        """(rows read before, the rows, their x)."""
        self._recent_rows = self._rows_read = self._events_read = 0
        self._sketch: tuple[int, bool, ChartData] | None = None
        """The charts of a sample, of which renewal, and whether it has heat maps."""
        self._last_order = (-1, -1)
        self._looked = self._idle = False
        self._renewals = getattr(self, "_renewals", -1) + 1

    def _take_header(self) -> None:
        if self._header is not None:
            return
        with contextlib.suppress(UnreadableInput):
            self._header = self.run.header(rank=self.rank)
        if self._header is not None:
            self._builder.feed(self._header)

    def _read_steps(self) -> bool:
        piece = self._steps.read()
        if self._steps.renewed:
            self._begin()
            return True
        if piece is None:
            self._release_events(all_of_them=True)
            self._builder.apply_pending_headers()
            return False
        rows = self._reader.read(piece.lines)
        rows.left_out += piece.passed_over
        if self._listener is not None:
            self._listener(piece, rows)
        if len(rows):
            x = self._builder.feed_rows(rows)
            self._last_order = (int(rows.segment[-1]), int(rows.seq[-1]))
            drawn = x[x >= 0]
            if len(drawn):
                self._index.add(piece.start, piece.end, int(drawn[0]), int(drawn[-1]), len(drawn))
            self._remember(rows, x)
            self._release_events()
        return True

    def _remember(self, rows: StepColumns, x: Ints) -> None:
        without_tensors = replace(rows, tensor_steps=[])
        self._recent.append((self._rows_read, without_tensors, x))
        self._rows_read += len(rows)
        self._recent_rows += len(rows)
        while len(self._recent) > 1 and self._recent_rows - len(self._recent[0][1]) >= RECENT_ROWS:
            self._recent_rows -= len(self._recent.popleft()[1])

    def _read_events(self) -> bool:
        more = False
        self._find_events()
        for tail, rank in self._events.values():
            piece = tail.read(EVENT_BYTES_PER_READ)
            if tail.renewed:
                self._begin()
                return True
            for line in piece.lines if piece is not None else ():
                self._take_event(line, rank)
            more = more or piece is not None
        return more

    def _find_events(self) -> None:
        """New event files; of thousands of ranks, only the first ones."""
        if self._events and not self._idle:
            return
        for name, rank in self.run.event_files().items():
            if name not in self._events and len(self._events) < MAX_EVENT_FILES:
                self._events[name] = (self.run.tail(name), rank)

    def _take_event(self, line: bytes, rank: int) -> None:
        if b'"kind":"tensor"' in line[:32] or not line.strip():
            return  # frequent, and nothing to draw
        try:
            record: Record = from_json(json.loads(line), rank=rank)
        except NO_RECORD:
            return
        if isinstance(record, Header):
            self._hosts[rank] = str(record.facts.get("host", ""))
            if rank == self.rank and record != self._header:
                self._builder.expect(record)
                self._headers.append(record)
        elif isinstance(record, (EventRecord, SetupRecord)):
            self._pending.append(record)
            if len(self._pending) > MAX_PENDING_EVENTS:
                self._feed_event(self._pending.popleft())

    def _release_events(self, *, all_of_them: bool = False) -> None:
        """Feed the events whose steps have been read: only now is their x known."""
        while self._pending:
            first = self._pending[0]
            if not all_of_them and (first.segment, first.seq) > self._last_order:
                return
            self._feed_event(self._pending.popleft())

    def _feed_event(self, record: EventRecord | SetupRecord) -> None:
        self._builder.feed(record)
        self._events_read += 1

    # Answers.

    def _exact(
        self, data: ChartData, first: int | None, last: int | None, points: int
    ) -> ChartData:
        begin, end = clamp_window(data, first, last)
        for series in data.series.values():
            series.points()  # folds pending points, which sets the bucket width
        whole = max((series.width for series in data.series.values()), default=1)
        pieces = self._index.between(begin, end)
        rows = sum(piece.rows for piece in pieces)
        wide = whole * points > MAX_COARSENESS * (end - begin + 1)
        cells = [(end - begin) // picture.width for picture in data.maps.values()]
        blurred = any(few < FEW_CELLS for few in cells) and rows <= MAP_ROWS
        if whole > 1 and rows <= CLOSE_ROWS and (wide or blurred):
            return self._close(data, begin, end, points)
        return cut_window(data, begin, end, points)

    def _close(self, data: ChartData, begin: int, end: int, points: int) -> ChartData:
        """A part of the run, read again in detail."""
        builder = ChartBuilder(points)
        self._feed_headers(builder)
        for piece in self._index.between(begin, end):
            lines = lines_between(self._steps.path, piece.start, piece.end, self.run.opener)
            rows = decode_steps(lines)
            x = rows.step + find_offsets(data.jumps, rows.order, SEQ_BITS)
            inside = (x >= begin) & (x <= end) & (x >= piece.first) & (x <= piece.last)
            # A line that was skipped as out of order is skipped again.
            inside &= np.r_[True, np.diff(rows.order) >= 0] if len(rows) else inside
            rows, x = rows.kept(inside), x[inside]
            if len(rows):
                builder.feed_rows(rows, np.maximum.accumulate(x))
        found = builder.data()
        return replace(
            cut_window(data, begin, end, points),
            series=found.series,
            maps=found.maps or cut_window(data, begin, end, points).maps,
            held=found.held,
        )

    def _feed_headers(self, builder: ChartBuilder) -> None:
        if self._header is not None:
            builder.feed(self._header)
        for header in self._headers:
            builder.expect(header)

    def _sketched(
        self, exact: ChartData, first: int | None, last: int | None, points: int, maps: bool
    ) -> ChartData:
        """The exact charts of what was read, then the sample."""
        sample = self._sample(maps)
        end = max(exact.end, sample.end)
        both = replace(exact, end=end)
        begin, until = clamp_window(both, first, last)
        part = cut_window(both, begin, until, points)
        beyond = cut_window(sample, max(begin, exact.end + 1), until, points)
        names = dict.fromkeys([*part.series, *beyond.series])
        part.series = {
            name: join_series(part.series.get(name), beyond.series.get(name), points)
            for name in names
        }
        part.held = join_series(part.held, beyond.held, points)
        part.maps = {**part.maps, **cut_window(sample, begin, until, points).maps}
        part.marks = [*part.marks, *beyond.marks]
        part.jumps = [*exact.jumps, *(jump for jump in sample.jumps if jump.x > exact.end)]
        return part

    def _sample(self, maps: bool) -> ChartData:
        """Charts from lines at evenly spaced places of the file."""
        known = (self._renewals, maps), (self._renewals, True)
        if self._sketch is None or self._sketch[:2] not in known:
            lines = sample_lines(self._steps.path, SKETCH_PLACES, SKETCH_BYTES, self.run.opener)
            builder = ChartBuilder(self._buckets)
            self._feed_headers(builder)
            # A line that is cut off in its columns still has its numbers; any other is lost.
            rows = StepColumnReader().read([line for line in lines if has_numbers(line)])
            if len(rows):
                builder.feed_rows(rows if maps else replace(rows, tensor_steps=[]))
            for record in self._pending:
                builder.feed(record)
            self._sketch = (self._renewals, maps, builder.data())
        return self._sketch[2]

    def _new(self, rows_before: int, events_before: int) -> ChartData:
        builder = ChartBuilder(RECENT_ROWS)
        for before, rows, x in self._recent:
            if before + len(rows) <= rows_before:
                continue
            if before < rows_before:
                fresh = np.arange(len(rows)) >= rows_before - before
                rows, x = rows.kept(fresh), x[fresh]
            builder.feed_rows(rows, x)
        found = builder.data()
        whole = self._builder.data()
        marks = whole.marks if self._events_read > events_before else []
        return replace(
            whole,
            series=found.series,
            held=found.held,
            maps={},
            marks=marks,
            steps=found.steps,
            progress=self.progress,
        )


def read_charts(
    run: str | Path, listener: Callable[[LineBlock, StepColumns], None] | None = None
) -> ChartData:
    """The charts of a whole run, as a report shows them."""
    charts = LiveCharts(RunDir(run), buckets=BUCKETS, listener=listener)
    while charts.read(seconds=60.0):
        pass
    return charts.window()
