"""Charts of a run directory that may be huge and may still grow.

    timeline = LiveTimeline(run)           opens nothing yet
    while timeline.read(seconds=0.05): …   reads on; True: there is more to read at once
    timeline.progress                      0 … 1, of what is there
    timeline.window(first, last, points)   what to draw of a stretch of the axis: a `ChartData`
    timeline.since(cursor)                 what is new since then: a `News`

What is kept of a signal is the lowest and the highest value of each of some thousand buckets, and
every NaN and Inf by kind with its first step and its last, so memory does not grow with the run.
Where a window asks for more than the buckets tell, the file is read again at that place; a sparse
index says where that is.

A run that has not been read yet is drawn from lines at some hundred places of its file, at once
(`data.exact` is False, `data.progress` below 1). While it is read the exact picture takes the place
of the sample, from the left to the right.

Nothing that stands in the files is an error: a half written line waits, a line that is no record is
left out, and if a file was cut or replaced everything begins anew and `since` says so. `first` and
`last` are places on the axis of the charts: see `timeline.py` for runs that go back. All methods
may be called from several threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
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
from headway.rundir.downsample import BUCKETS, CELLS, Ints, join_series
from headway.rundir.run_files import FileTail, LineBlock, lines_between, read_header, sample_lines
from headway.rundir.step_columns import SEQ_BITS, StepColumnReader, StepColumns, decode_steps
from headway.rundir.timeline import StepIndex, find_offsets

STORED_BUCKETS = 16_384
"""Buckets kept of each signal."""
STORED_CELLS = 1024
"""Cells kept of a heat map; no more than `CELLS` are drawn at once."""
MAX_COARSENESS = 3
"""A window is read again where the kept buckets are more than so many times too wide for it."""
SKETCH_PLACES, SKETCH_BYTES = 256, 1 << 11
"""Places of a file that has not been read, and bytes at each, from which it is drawn at first."""
CLOSE_ROWS = 200_000
"""A window of no more steps is read again from the file where the buckets are too wide for it."""
FEW_CELLS, MAP_ROWS = 40, 30_000
"""A window with fewer cells of a heat map, and no more steps, is read again as well."""
RECENT_ROWS = 20_000
"""Steps that `since` can tell one by one."""
EVENT_BYTES_PER_READ = 1 << 18
MAX_EVENT_FILES = 2000
MAX_HEADERS = 100
MAX_PENDING_EVENTS = 10_000
"""Events that wait for their steps to be read."""

_EVENTS = re.compile(r"^events(?:\.rank(\d{1,9}))?\.jsonl$")
_RANK = re.compile(r"^steps\.rank(\d{1,9})\.jsonl$")


class LiveCharts:
    """One rank's steps and what happened, as charts."""

    def __init__(
        self,
        run: str | Path,
        *,
        rank: int = 0,
        buckets: int = STORED_BUCKETS,
        listener: Callable[[LineBlock, StepColumns], None] | None = None,
    ) -> None:
        """`listener` is handed every piece of the steps' file and the rows in it, once."""
        self.run = Path(run)
        self.rank = rank
        self._listener = listener
        self._buckets = buckets
        self._cells = STORED_CELLS if buckets > BUCKETS else CELLS
        self._lock = RLock()
        self._born = os.urandom(6).hex()
        self._begin()

    @property
    def ranks(self) -> list[int]:
        """The ranks that wrote steps."""
        return sorted(int(match[1]) for name in self._names() if (match := _RANK.match(name)))

    @property
    def header(self) -> Header | None:
        """What the run says of itself; None while it has not said anything."""
        return self._header

    @property
    def progress(self) -> float:
        """How much of the steps' file, as long as it was at the last look, has been read."""
        with self._lock:
            if not self._looked:
                return 0.0
            steps = self._steps
            # A half written line at the end is not waited for.
            return 1.0 if self._idle or not steps.size else steps.place / max(steps.size, 1)

    @property
    def end(self) -> int:
        """The largest x that has been read."""
        return self._gatherer.axis.end

    def read(self, seconds: float = 0.05) -> bool:
        """Read on for about so long. Whether there is more to read at once."""
        until = time.monotonic() + seconds
        while True:
            with self._lock:
                self._take_header()
                self._looked = True
                more = self._read_events()
                more = self._read_steps() or more
                self._idle = not more
            if not more or time.monotonic() >= until:
                return more

    def window(
        self, first: int | None = None, last: int | None = None, points: int = BUCKETS
    ) -> ChartData:
        """What to draw from `first` to `last`, both included (None: the ends of the run).

        `points`: buckets across the window, of two points each at most.
        """
        points = min(max(points, 2), self._buckets)
        with self._lock:
            if not self._looked:
                self.read(0.0)
            exact = self._gatherer.data()
            exact.progress = self.progress
            if exact.exact:
                return self._exact(exact, first, last, points)
            return self._sketched(exact, first, last, points)

    def since(self, cursor: str) -> ChartUpdate:
        """What has been read since an earlier answer."""
        with self._lock:
            now = f"{self._born}.{self._renewals}.{self._rows_read}.{self._events_read}"
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

    # What is read and how it is kept.

    def _begin(self) -> None:
        """As if nothing had been read."""
        self._gatherer = ChartBuilder(self._buckets, self._cells)
        self._reader = StepColumnReader()
        self._steps = FileTail(self.run / f"steps.rank{self.rank}.jsonl")
        self._events: dict[str, tuple[FileTail, int]] = {}
        """By name of the file: how far it was read, and the rank that wrote it."""
        self._places = StepIndex()
        self._header: Header | None = None
        self._headers: deque[Header] = deque(maxlen=MAX_HEADERS)
        """Later ones: a run that is resumed may name its tensors anew."""
        self._waiting: deque[EventRecord | SetupRecord] = deque()
        self._recent: deque[tuple[int, StepColumns, Ints]] = deque()
        """(rows read before, the rows, their places)."""
        self._recent_rows = self._rows_read = self._events_read = 0
        self._sketch: tuple[int, ChartData] | None = None
        self._last_order = (-1, -1)
        self._looked = self._idle = False
        self._renewals = getattr(self, "_renewals", -1) + 1

    def _take_header(self) -> None:
        if self._header is not None:
            return
        with contextlib.suppress(UnreadableInput):
            self._header = read_header(self.run, rank=self.rank)
        if self._header is not None:
            self._gatherer.feed(self._header)

    def _read_steps(self) -> bool:
        piece = self._steps.read()
        if self._steps.renewed:
            self._begin()
            return True
        if piece is None:
            self._release_events(all_of_them=True)
            self._gatherer.apply_pending_headers()
            return False
        rows = self._reader.read(piece.lines)
        rows.left_out += piece.passed_over
        if self._listener is not None:
            self._listener(piece, rows)
        if len(rows):
            x = self._gatherer.feed_rows(rows)
            self._last_order = (int(rows.segment[-1]), int(rows.seq[-1]))
            drawn = x[x >= 0]
            if len(drawn):
                self._places.add(piece.start, piece.end, int(drawn[0]), int(drawn[-1]), len(drawn))
            self._remember(rows, x)
            self._release_events()
        return True

    def _remember(self, rows: StepColumns, x: Ints) -> None:
        slim = replace(rows, looks=[])
        self._recent.append((self._rows_read, slim, x))
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
        """What is each rank's own is heard from each; with thousands of them, of the first."""
        for name in [] if self._events and not self._idle else self._names():
            match = _EVENTS.match(name)
            if match and name not in self._events and len(self._events) < MAX_EVENT_FILES:
                self._events[name] = (FileTail(self.run / name), int(match[1] or 0))

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.run))
        except OSError:
            return []

    def _take_event(self, line: bytes, rank: int) -> None:
        if b'"kind":"tensor"' in line[:32] or not line.strip():
            return  # many, and nothing to draw
        try:
            record: Record = from_json(json.loads(line), rank=rank)
        except NO_RECORD:
            return
        if isinstance(record, Header):
            if rank == self.rank and record != self._header:
                self._gatherer.expect(record)
                self._headers.append(record)
        elif isinstance(record, (EventRecord, SetupRecord)):
            self._waiting.append(record)
            if len(self._waiting) > MAX_PENDING_EVENTS:
                self._feed_event(self._waiting.popleft())

    def _release_events(self, *, all_of_them: bool = False) -> None:
        """Those whose steps have been read: only now is it known where they stand."""
        while self._waiting:
            first = self._waiting[0]
            if not all_of_them and (first.segment, first.seq) > self._last_order:
                return
            self._feed_event(self._waiting.popleft())

    def _feed_event(self, record: EventRecord | SetupRecord) -> None:
        self._gatherer.feed(record)
        self._events_read += 1

    # What is answered.

    def _exact(
        self, data: ChartData, first: int | None, last: int | None, points: int
    ) -> ChartData:
        begin, end = clamp_window(data, first, last)
        for series in data.series.values():
            series.points()  # only then are the buckets as wide as they have to be
        whole = max((series.width for series in data.series.values()), default=1)
        pieces = self._places.between(begin, end)
        rows = sum(piece.rows for piece in pieces)
        wide = whole * points > MAX_COARSENESS * (end - begin + 1)
        cells = [(end - begin) // picture.width for picture in data.maps.values()]
        blurred = any(few < FEW_CELLS for few in cells) and rows <= MAP_ROWS
        if whole > 1 and rows <= CLOSE_ROWS and (wide or blurred):
            return self._close(data, begin, end, points)
        return cut_window(data, begin, end, points)

    def _close(self, data: ChartData, begin: int, end: int, points: int) -> ChartData:
        """A stretch of the run, read again."""
        gatherer = ChartBuilder(points)
        self._tell_headers(gatherer)
        for piece in self._places.between(begin, end):
            lines = lines_between(self._steps.path, piece.start, piece.end)
            rows = decode_steps(lines)
            x = rows.step + find_offsets(data.jumps, rows.order, SEQ_BITS)
            inside = (x >= begin) & (x <= end) & (x >= piece.first) & (x <= piece.last)
            # A line that was out of order is out of order still.
            inside &= np.r_[True, np.diff(rows.order) >= 0] if len(rows) else inside
            rows, x = rows.kept(inside), x[inside]
            if len(rows):
                gatherer.feed_rows(rows, np.maximum.accumulate(x))
        found = gatherer.data()
        return replace(
            cut_window(data, begin, end, points),
            series=found.series,
            maps=found.maps or cut_window(data, begin, end, points).maps,
            held=found.held,
        )

    def _tell_headers(self, gatherer: ChartBuilder) -> None:
        if self._header is not None:
            gatherer.feed(self._header)
        for header in self._headers:
            gatherer.expect(header)

    def _sketched(
        self, exact: ChartData, first: int | None, last: int | None, points: int
    ) -> ChartData:
        """What has been read, and beyond that the sample."""
        sample = self._sample()
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
        part.maps = {**beyond.maps, **part.maps}
        part.marks = [*part.marks, *beyond.marks]
        part.jumps = [*exact.jumps, *(jump for jump in sample.jumps if jump.x > exact.end)]
        return part

    def _sample(self) -> ChartData:
        """The run as lines at some places of its file tell it."""
        if self._sketch is None or self._sketch[0] != self._renewals:
            lines = sample_lines(self._steps.path, SKETCH_PLACES, SKETCH_BYTES)
            gatherer = ChartBuilder(self._buckets)
            self._tell_headers(gatherer)
            rows = StepColumnReader().read(lines)
            if len(rows):
                gatherer.feed_rows(rows)
            for record in self._waiting:
                gatherer.feed(record)
            self._sketch = (self._renewals, gatherer.data())
        return self._sketch[1]

    def _new(self, rows_before: int, events_before: int) -> ChartData:
        gatherer = ChartBuilder(RECENT_ROWS)
        for before, rows, x in self._recent:
            if before + len(rows) <= rows_before:
                continue
            if before < rows_before:
                fresh = np.arange(len(rows)) >= rows_before - before
                rows, x = rows.kept(fresh), x[fresh]
            gatherer.feed_rows(rows, x)
        found = gatherer.data()
        whole = self._gatherer.data()
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
    """The charts of a whole run, read once, as a report shows them."""
    timeline = LiveCharts(run, buckets=BUCKETS, listener=listener)
    while timeline.read(seconds=60.0):
        pass
    return timeline.window()
