"""A log in memory: columns of named numbers, their meaning, and events between the rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headway.core.signals import Signal

# Rows of named numbers, stored by column in plain arrays: a log of a million steps fits in memory,
# and a question about a whole column is one numpy call.

MAX_COLUMNS = 2000
"""Columns beyond this are dropped and counted: no training has as many."""


@dataclass(slots=True)
class Series:
    """One column: the rows that have a value, and the values."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.rows)

    def where(self) -> NDArray[np.int64]:
        """The rows as a numpy array."""
        return np.frombuffer(self.rows, dtype=np.int64) if self.rows else np.zeros(0, np.int64)

    def numbers(self) -> NDArray[np.float64]:
        """The values as a numpy array."""
        return np.frombuffer(self.values, dtype=np.float64) if self.values else np.zeros(0)


@dataclass(slots=True)
class Table:
    """Rows in the order they were written; each has a step and some of the columns."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    series: dict[str, Series] = field(default_factory=dict)
    dropped: int = 0
    """Values dropped because of `MAX_COLUMNS`."""

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a row."""
        row = len(self.steps)
        self.steps.append(step)
        for name, value in values.items():
            series = self.series.get(name)
            if series is None:
                if len(self.series) >= MAX_COLUMNS:
                    self.dropped += 1
                    continue
                series = self.series[name] = Series()
            series.rows.append(row)
            series.values.append(value)

    def extend(self, steps: Any, columns: Mapping[str, Any]) -> None:
        """Adds many rows; each column has one value per row."""
        first = len(self.steps)
        self.steps.extend(steps)
        rows = range(first, len(self.steps))
        for name, values in columns.items():
            series = self.series.setdefault(name, Series())
            series.rows.extend(rows)
            series.values.extend(values)

    def rows(
        self, names: Mapping[str, tuple[str, float]], chosen: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[int, int, dict[str, float]]]:
        """(row, step, values) in order, of the chosen rows or of all.

        `names` selects columns: the name in the log → (our name, factor).
        """
        numbers: Any = range(len(self.steps)) if chosen is None else chosen.tolist()
        found: list[dict[str, float]] = [{} for _ in numbers]
        for raw, (name, factor) in names.items():
            series = self.series.get(raw)
            if series is None:
                continue
            for place, value in _placed(series, chosen):
                found[place][name] = value * factor
        steps = self.steps
        for row, values in zip(numbers, found, strict=True):
            yield row, steps[row], values

    def plain(self) -> Iterator[tuple[int, dict[str, float]]]:
        """(step, values) of all rows, under the names in the log."""
        for _, step, values in self.rows({name: (name, 1.0) for name in self.series}):
            yield step, values


def _placed(series: Series, chosen: NDArray[np.int64] | None) -> Iterator[tuple[int, float]]:
    """(position among the chosen rows, value) of a series."""
    if chosen is None:
        return zip(series.rows, series.values, strict=True)
    rows, values = series.where(), series.numbers()
    places = np.searchsorted(chosen, rows)
    inside = places < len(chosen)
    inside[inside] = chosen[places[inside]] == rows[inside]
    return zip(places[inside].tolist(), values[inside].tolist(), strict=True)


def table_of(
    points: Mapping[str, tuple[Any, Any]],
) -> Table:
    """A table from series with their own steps: `{name: (steps, values)}`.

    There is one row per step, in order; of several values at one step, the last is taken.
    """
    steps = sorted({int(step) for own, _ in points.values() for step in own})
    row_of = {step: row for row, step in enumerate(steps)}
    table = Table(array("q", steps))
    for name, (own, values) in points.items():
        last = {row_of[int(step)]: float(value) for step, value in zip(own, values, strict=True)}
        rows = sorted(last)
        table.series[name] = Series(array("q", rows), array("d", [last[row] for row in rows]))
    return table


# A log: its numbers, what they mean, and how much of the file was understood.

Unit = Literal["step", "epoch", "row"]
"""What the step of a row counts: optimizer steps, epochs, or rows if the log has neither."""


@dataclass(slots=True)
class LogEvent:
    """Something that happened between two rows: an overflow, a restart, a traceback."""

    row: int
    """The number of rows before it."""
    kind: str
    """`scaler-skip`, `restart`, `exception`, `killed-in-log`, `signed-off`, `note`, …"""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Log:
    """The result of a reader: a log as a table with its events and facts."""

    format: str
    """The reader's name: `hf-trainer`, `megatron`, `tensorboard`, …"""
    path: Path
    table: Table
    unit: Unit = "step"
    signals: dict[str, Signal] = field(default_factory=dict)
    """What the reader knows about a column, by its name in the log. Other columns are described
    from their rows: a value of one step, logged at an interval."""
    names: dict[str, str] = field(default_factory=dict)
    """Name in the log → our name, where `log_names.py` would not know it; "" for a column that is
    not a signal."""
    lines: int = 0
    """Lines (records, points) in the file."""
    used: int = 0
    """Lines that numbers were taken from."""
    events: list[LogEvent] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings found in the log: `max_norm`, `precision`, `logging_steps`, …"""
    notes: list[str] = field(default_factory=list)
    """Notes for the report: damaged lines, joined files."""
    run: str = ""
    """The name of the run in a store of several runs."""

    @property
    def share(self) -> float:
        """The share of the lines that were used."""
        return self.used / self.lines if self.lines else 0.0


# Points of stores that keep each column separately become rows, by their step.


def add_points(table: Table, points: Iterable[tuple[str, array[int], array[float]]]) -> bool:
    """Adds (name, steps, values) as rows, by increasing step; False if there are none.

    No point is lost: a second value of a column at one step becomes a second row.
    """
    together: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
    for name, own_steps, own_values in points:
        if not len(own_steps):
            continue
        steps = np.frombuffer(own_steps, dtype=np.int64)
        values = np.frombuffer(own_values, dtype=np.float64)
        if name in together:
            steps = np.concatenate((together[name][0], steps))
            values = np.concatenate((together[name][1], values))
        together[name] = steps, values
    if not together:
        return False
    placed = {}
    for name, (steps, values) in together.items():
        order = np.argsort(steps, kind="stable")
        placed[name] = steps[order], _repeats(steps[order]), values[order]
    begin = len(table)
    steps, rows = _rows([(steps, again) for steps, again, _ in placed.values()])
    table.steps.extend(steps.tolist())
    upto = 0
    for name, (own, _, values) in placed.items():
        at, upto = upto, upto + len(own)
        if name not in table.series and len(table.series) >= MAX_COLUMNS:
            table.dropped += 1
            continue
        series = table.series.setdefault(name, Series())
        series.rows.extend((rows[at:upto] + begin).tolist())
        series.values.extend(values.tolist())
    return True


def number_rows(log: Log) -> None:
    """Counts the rows if all points have step 0: the writer passed no step."""
    steps = np.frombuffer(log.table.steps, dtype=np.int64)
    if len(steps) > 1 and not steps.any():
        log.table.steps = array("q", range(len(steps)))
        log.unit = "row"
        log.notes.append("no point has a step: rows are counted instead")


@dataclass(slots=True)
class LogPoints:
    """Points in the order they were written; a repeated step starts a new part."""

    parts: list[dict[str, tuple[array[int], array[float]]]] = field(default_factory=list)
    furthest: dict[str, int] = field(default_factory=dict)
    seen: dict[str, set[int]] = field(default_factory=dict)
    """The steps of those names whose step ever decreased."""

    def add(self, name: str, step: int, value: float) -> None:
        """Adds a point; a new part if its step was already written."""
        furthest = self.furthest.get(name, step)
        if not self.parts or (step < furthest and self._was_there(name, step)):
            self.parts.append({})
            self.furthest.clear()
            self.seen.clear()
            furthest = step
        part = self.parts[-1]
        if name not in part:
            if len(part) >= MAX_COLUMNS:
                return
            part[name] = array("q"), array("d")
        if name in self.seen:
            self.seen[name].add(step)
        self.furthest[name] = max(step, furthest)
        part[name][0].append(step)
        part[name][1].append(value)

    def _was_there(self, name: str, step: int) -> bool:
        """Some writers are slightly out of order; only a repeated step is a restart."""
        if name not in self.seen:
            self.seen[name] = set(self.parts[-1][name][0])
        return step in self.seen[name]

    def into(self, log: Log) -> None:
        """Adds all points to the table, as rows."""
        for part in self.parts:
            begin = len(log.table)
            add_points(log.table, ((name, *points) for name, points in part.items()))
            if begin:
                step = log.table.steps[begin]
                log.events.append(LogEvent(begin, "restart", {"step": step}))
                log.notes.append(f"restarted at step {step}")
        number_rows(log)


def _rows(
    points: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The step of each row, and the row of each point."""
    steps, place = np.unique(np.concatenate([own for own, _ in points]), return_inverse=True)
    again = np.concatenate([own for _, own in points])
    most = int(again.max()) + 1
    keys, rows = np.unique(place * most + again, return_inverse=True)
    return steps[keys // most], rows


def _repeats(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal steps are before each one, in sorted steps."""
    places = np.arange(len(steps))
    first = np.concatenate(([True], steps[1:] != steps[:-1]))
    return places - np.maximum.accumulate(np.where(first, places, 0))
