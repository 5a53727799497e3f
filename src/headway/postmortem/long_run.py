"""A run directory with more steps than checks can be fed one by one.

Its steps are read once, for the charts and to find what stands out; then the lines that are worth
looking at closely are read again and become records. A short run is left as it is.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headway.core.codec import NO_RECORD, from_json
from headway.core.findings import Finding
from headway.core.records import Record
from headway.postmortem.screening import RunScreen, SelectionLimits, select_steps
from headway.rundir.chart_data import ChartData
from headway.rundir.live_charts import read_charts
from headway.rundir.run_files import LineBlock, lines_between
from headway.rundir.step_columns import Ints, StepColumns

LONG = 50_000
"""A run of no more steps is looked at whole."""


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    end: int
    first: int
    """The number of its first row."""
    rows: int
    lines: Ints | None
    """The lines of its rows; None: all."""


@dataclass
class LongRun:
    """What is left of the steps of such a run."""

    path: Path
    charts: ChartData
    steps: int
    """Steps there are."""
    close: int
    """Steps that are looked at closely."""
    torn: int
    """Lines that hold no step."""
    _parts: list[_Part] = field(repr=False)
    _kept: Ints = field(repr=False)
    _given: list[tuple[int, int]] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls, run: Path, chosen: SelectionLimits | None = None, long: int | None = None
    ) -> LongRun | None:
        """None where the run is short enough to be looked at whole."""
        long = LONG if long is None else long
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

    def drawn(self) -> ChartData:
        """The charts, which were made along the way."""
        return self.charts

    def records(self) -> Iterator[Record]:
        """The steps that are looked at closely, in order."""
        self._given.clear()
        for part in self._parts:
            begin, end = np.searchsorted(self._kept, [part.first, part.first + part.rows])
            if begin == end:
                continue
            wanted = self._kept[begin:end] - part.first
            if part.lines is not None:
                wanted = part.lines[wanted]
            told = lines_between(self.path, part.start, part.end)
            lines = [line for line in told if line and not line.isspace()]
            for at in wanted.tolist():
                try:
                    record = from_json(json.loads(lines[at]))
                except (IndexError, *NO_RECORD):
                    continue  # its columns are torn
                self._given.append((record.segment, record.seq))
                yield record

    def distance(self, earlier: Finding, later: Finding) -> int:
        """How many of the steps that were given out lie between two findings."""
        given = self._given
        return bisect_right(given, later.order) - bisect_right(given, earlier.order)


class _Reading:
    """Takes what the reader of the charts has read."""

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
    """Whether a file has more lines than that."""
    try:
        with open(path, "rb") as file:
            found = 0
            while found <= count and (data := file.read(1 << 20)):
                found += data.count(b"\n")
    except OSError:
        return False
    return found > count
