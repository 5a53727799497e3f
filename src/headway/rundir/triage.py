"""Picks the steps of a very long run that the checks receive, and reads only those as records."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.core.codec import NO_RECORD, from_json
from headway.core.findings import Finding
from headway.core.records import Record
from headway.core.signals import SYSTEM_SIGNALS
from headway.rundir.chart_data import ChartData
from headway.rundir.downsample import pick_rows
from headway.rundir.live_charts import read_charts
from headway.rundir.run_files import LineBlock, lines_between
from headway.rundir.step_columns import Floats, Ints, StepColumns

# Screening. Each signal is reduced to a few numbers per block of 64 values: maximum, minimum,
# median and spread. A column over tensors becomes four signals: how many values are non-finite or
# zero, the largest, and the largest change. The blocks that differ from their neighbours say which
# steps the checks need. Memory grows with the number of blocks, not of steps.

MAX_SCREENED_SIGNALS = 64
BLOCK_SIZE = 64
"""Values of a signal that are screened together."""
MAX_ROW_DISTANCE = 100
"""Rows that lie no further apart belong together."""
RATES = ("lr", "loss_scale")
TENSOR_STEPS_PER_FOLD = 64
STRONG, RISEN = 8.0, 10.0
"""Thresholds, in spreads: a value against its block, a level against the blocks before."""
JUMP = 1.3
"""The smallest factor that counts as a jump of a learning rate or loss scale."""


class RankedRow(NamedTuple):
    """A row worth checking; `strength` ranks the rows of one signal."""

    row: int
    strength: float


@dataclass
class RowRanges:
    """Rows with a common property, grouped into ranges."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, rows: Sequence[int]) -> None:
        for row in rows:
            if self.ends and row - self.ends[-1] <= MAX_ROW_DISTANCE:
                self.ends[-1] = row
            elif len(self.begins) < 10_000:
                self.begins.append(row)
                self.ends.append(row)

    def places(self) -> Iterator[RankedRow]:
        """Starts and ends of some ranges; the first is the strongest."""
        for some in (self.begins, self.ends):
            for number, row in enumerate(pick_rows(np.asarray(some, np.int64)).tolist()):
                yield RankedRow(row, 1e9 / (1 + number))


class SignalBlocks:
    """Screens one signal."""

    def __init__(self, *, rate: bool = False) -> None:
        self._rate = rate
        self._bad, self._jumps = RowRanges(), RowRanges()
        self._rows: Ints = np.empty(0, np.int64)
        self._values: Floats = np.empty(0)
        self._blocks: list[Floats] = []
        """Per block: maximum, its row, first row, median, spread, minimum, its row."""
        self._last = np.nan

    def add(self, rows: Ints, values: Floats) -> None:
        finite = np.isfinite(values)
        if not finite.all():
            self._bad.add(rows[~finite].tolist())
            rows, values = rows[finite], values[finite]
        if self._rate and len(values):
            self._take_rate(rows, values)
        self._rows = np.concatenate([self._rows, rows])
        self._values = np.concatenate([self._values, values])
        whole = len(self._values) // BLOCK_SIZE * BLOCK_SIZE
        if whole:
            self._fold(whole)

    def places(self) -> Iterator[RankedRow]:
        """The rows that stand out, in no particular order."""
        yield from self._bad.places()
        yield from self._jumps.places()
        if len(self._values):
            self._fold(len(self._values))
        if not self._blocks:
            return
        high, high_row, first, middle, width, low, low_row = np.concatenate(self._blocks).T
        # Where most blocks are constant, the usual spread is 0.
        usual = float(np.median(width))
        yield from _outliers(high - middle, middle, width, usual, high_row, sign=1)
        yield from _outliers(middle - low, middle, width, usual, low_row, sign=-1)
        yield from _levels(middle, first)

    def _take_rate(self, rows: Ints, values: Floats) -> None:
        before = np.concatenate([[self._last], values[:-1]])
        self._last = float(values[-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = values / before
        self._jumps.add(rows[(ratio > JUMP) | (ratio < 1 / JUMP)].tolist())

    def _fold(self, count: int) -> None:
        size = min(BLOCK_SIZE, count)
        blocks = self._values[:count].reshape(-1, size)
        rows = self._rows[:count].reshape(-1, size)
        self._values, self._rows = self._values[count:], self._rows[count:]
        # Every fourth value is enough to estimate the level and spread of a block.
        part = np.sort(blocks[:, ::4], axis=1)
        edge = min(3, (part.shape[1] - 1) // 2)
        each = np.arange(len(blocks))
        top, bottom = blocks.argmax(axis=1), blocks.argmin(axis=1)
        self._blocks.append(
            np.stack(
                [
                    blocks[each, top],
                    rows[each, top],
                    rows[:, 0],
                    part[:, part.shape[1] // 2],
                    part[:, -1 - edge] - part[:, edge],
                    blocks[each, bottom],
                    rows[each, bottom],
                ],
                axis=1,
            )
        )


def _outliers(
    distance: Floats, middle: Floats, width: Floats, usual: float, row: Floats, sign: int
) -> Iterator[RankedRow]:
    """The values furthest from their neighbours, measured in spreads."""
    before = np.concatenate([middle[:1], middle[:-1]])
    # The previous block counts too: a rise within a block widens its own spread.
    far = np.maximum(distance, distance + sign * (middle - before))
    calm = np.maximum(np.minimum(width, np.concatenate([width[:1], width[:-1]])), usual / 10)
    level = np.minimum(np.abs(middle), np.abs(before))
    yield from _strong(far / np.maximum(calm, 1e-12 + 1e-6 * level), row, STRONG)


def _levels(middle: Floats, first: Floats) -> Iterator[RankedRow]:
    """Rows where the mean of the next blocks differs from that of the blocks before."""
    for reach in (4, 32):
        if len(middle) < 4 * reach:
            continue
        sums = np.concatenate([[0.0], np.cumsum(middle)])
        means = (sums[reach:] - sums[:-reach]) / reach
        change = np.abs(means[reach:] - means[:-reach])
        usual = float(np.median(change)) + 1e-12 + 1e-9 * abs(float(np.median(middle)))
        yield from _strong(change / usual, first[reach : reach + len(change)], RISEN)


def _strong(strength: Floats, row: Floats, least: float) -> Iterator[RankedRow]:
    """The strongest rows, and the first ones above the threshold."""
    strong = np.flatnonzero(strength > least)
    if not len(strong):
        return
    ranked = strong[np.argsort(-strength[strong], kind="stable")[:32]]
    for at in ranked.tolist():
        yield RankedRow(int(row[at]), float(strength[at]))
    for number, at in enumerate(strong[:3].tolist()):
        yield RankedRow(int(row[at]), float(strength[ranked[0]]) / (1 + number))


class TensorScreen:
    """Screens one column over tensors as four signals."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Floats]] = []
        self._at: tuple[int, ...] | None = None
        self._usual: Floats | None = None
        self.signals = {name: SignalBlocks() for name in ("bad", "zero", "largest", "moved")}

    def add(self, row: int, values: Floats, index: Sequence[int] | None) -> None:
        if not len(values):
            return
        numbers, at = np.abs(values), None if index is None else tuple(index)
        if self._waiting and (at != self._at or len(numbers) != len(self._waiting[0][1])):
            self.fold()
            self._usual = None
        self._at = at
        self._waiting.append((row, numbers))
        if len(self._waiting) >= TENSOR_STEPS_PER_FOLD:
            self.fold()

    def fold(self) -> None:
        """Reduce the collected steps to numbers."""
        if not self._waiting:
            return
        rows = np.asarray([row for row, _ in self._waiting], np.int64)
        table = np.stack([numbers for _, numbers in self._waiting])
        self._waiting = []
        finite = np.isfinite(table)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log10(np.where(finite & (table > 0), table, np.nan))
        if self._usual is None:
            self._usual = logs[0]
        moved = np.abs(logs - self._usual)
        self._usual = np.where(np.isnan(logs[-1]), self._usual, logs[-1])
        reduced = {
            "bad": (~finite).sum(axis=1),
            "zero": (table == 0).sum(axis=1),
            "largest": np.where(finite, table, 0.0).max(axis=1),
            "moved": np.nan_to_num(moved).max(axis=1),
        }
        for name, numbers in reduced.items():
            self.signals[name].add(rows, numbers.astype(np.float64))


class RunScreen:
    """Screens all signals of a run. Feed it the steps in order."""

    def __init__(self) -> None:
        self.rows = 0
        self._signals: dict[str, SignalBlocks] = {}
        self._tensors: dict[str, TensorScreen] = {}
        self._held, self._jumps = RowRanges(), RowRanges()
        self._step, self._segment = -1, 0

    def feed(self, rows: StepColumns) -> None:
        if not len(rows):
            return
        start = self.rows
        self.rows += len(rows)
        steps = np.concatenate([[self._step], rows.step])
        segments = np.concatenate([[self._segment], rows.segment])
        jumped = (np.diff(steps) < 0) | (np.diff(segments) > 0)
        self._step, self._segment = int(steps[-1]), int(segments[-1])
        self._jumps.add((np.flatnonzero(jumped) + start).tolist())
        self._held.add((np.flatnonzero(rows.held) + start).tolist())
        for name, (at, values) in rows.values.items():
            known = self._signals.get(name)  # no check reads the signals of the machine
            if not (known or name in SYSTEM_SIGNALS or len(self._signals) >= MAX_SCREENED_SIGNALS):
                known = self._signals[name] = SignalBlocks(rate=name.partition("#")[0] in RATES)
            if known is not None:
                known.add(at + start, values)
        for step in rows.tensor_steps:
            for name, column in step.columns().items():
                screen = self._tensors.get(name)
                if screen is None and len(self._tensors) < MAX_SCREENED_SIGNALS:
                    screen = self._tensors[name] = TensorScreen()
                if screen is not None:
                    screen.add(step.row + start, *column)

    def places(self) -> list[int]:
        """The rows worth checking: the strongest of each signal, then the second of each, …"""
        signals: list[RowRanges | SignalBlocks] = [self._jumps, self._held, *self._signals.values()]
        for tensors in self._tensors.values():
            tensors.fold()
            signals += tensors.signals.values()
        ranked = [sorted(signal.places(), key=lambda place: -place.strength) for signal in signals]
        longest = max((len(places) for places in ranked), default=0)
        return [places[at].row for at in range(longest) for places in ranked if at < len(places)]


def select_steps(count: int, places: Sequence[int], chosen: SelectionLimits) -> NDArray[np.bool_]:
    """The rows the checks receive: both ends, even stretches, and around what stands out."""
    keep = np.zeros(count, bool)
    keep[: chosen.head] = keep[-chosen.tail :] = True
    begins = np.linspace(0, max(count - chosen.stretch, 0), chosen.stretches).astype(np.int64)
    for begin in begins.tolist():
        keep[begin : begin + chosen.stretch] = True
    for place in places:
        if np.count_nonzero(keep) >= chosen.most:
            break
        keep[max(place - chosen.before, 0) : place + chosen.after] = True
    return keep


class SelectionLimits(NamedTuple):
    """How many rows the checks receive, and from where."""

    head: int = 2000
    tail: int = 2000
    stretch: int = 200
    stretches: int = 40
    before: int = 300
    after: int = 100
    most: int = 30_000


# The steps are read once as columns, for the charts and the screening; then the selected lines are
# read again and become records.

LONG_RUN_STEPS = 50_000
"""The checks receive every step of a run with at most this many."""


class _Part(NamedTuple):
    start: int
    end: int
    first: int  # index of its first row
    rows: int
    lines: Ints | None  # line numbers of its rows; None if every line is a row


@dataclass
class LongRun:
    """The selected steps of a long run, and its charts."""

    path: Path
    charts: ChartData
    steps: int
    """Steps in the run."""
    close: int
    """Steps the checks receive."""
    torn: int
    """Lines that are not a valid step."""
    _parts: list[_Part] = field(repr=False)
    _kept: Ints = field(repr=False)
    _given: list[tuple[int, int]] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls, run: Path, chosen: SelectionLimits | None = None, long: int | None = None
    ) -> LongRun | None:
        """None if the run is short enough to check every step."""
        long = LONG_RUN_STEPS if long is None else long
        path = run / "steps.rank0.jsonl"
        if not _has_lines(path, long):
            return None
        reading = _Reading()
        charts = read_charts(run, reading.take)
        screen = reading.screen
        if screen.rows <= long:
            return None
        keep = select_steps(screen.rows, screen.places(), chosen or SelectionLimits())
        rows = np.flatnonzero(keep).astype(np.int64)
        return cls(path, charts, screen.rows, len(rows), reading.torn, reading.parts, rows)

    def records(self) -> Iterator[Record]:
        """The selected steps, in order."""
        self._given.clear()
        for part in self._parts:
            begin, end = np.searchsorted(self._kept, [part.first, part.first + part.rows])
            if begin == end:
                continue
            wanted = self._kept[begin:end] - part.first
            if part.lines is not None:
                wanted = part.lines[wanted]
            block = lines_between(self.path, part.start, part.end)
            lines = [line for line in block if line and not line.isspace()]
            for at in wanted.tolist():
                try:
                    record = from_json(json.loads(lines[at]))
                except (IndexError, *NO_RECORD):
                    continue  # its columns are damaged
                self._given.append((record.segment, record.seq))
                yield record

    def distance(self, earlier: Finding, later: Finding) -> int:
        """How many selected steps lie between two findings."""
        given = self._given
        return bisect_right(given, later.order) - bisect_right(given, earlier.order)


class _Reading:
    """Receives every block that the chart reader reads."""

    def __init__(self) -> None:
        self.screen = RunScreen()
        self.parts: list[_Part] = []
        self.torn = 0

    def take(self, piece: LineBlock, rows: StepColumns) -> None:
        self.torn += rows.left_out
        if len(rows):
            whole = len(rows) == int(rows.lines[-1]) + 1
            first = self.screen.rows
            lines = None if whole else rows.lines
            self.parts.append(_Part(piece.start, piece.end, first, len(rows), lines))
        self.screen.feed(rows)


def _has_lines(path: Path, count: int) -> bool:
    """Whether a file has more lines than `count`."""
    try:
        with open(path, "rb") as file:
            found = 0
            while found <= count and (data := file.read(1 << 20)):
                found += data.count(b"\n")
    except OSError:
        return False
    return found > count
