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

# Rows of named numbers, as some other tool logged them.

# Held by column, in plain arrays: a log of a million steps fits in memory, and questions about a
# whole column are one numpy call.

MAX_COLUMNS = 2000
"""A log with more names than this is no log of a training; the rest is left out and counted."""


@dataclass(slots=True)
class Series:
    """One named number: the rows it stands in, and its values there."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.rows)

    def where(self) -> NDArray[np.int64]:
        """The rows as numpy sees them."""
        return np.frombuffer(self.rows, dtype=np.int64) if self.rows else np.zeros(0, np.int64)

    def numbers(self) -> NDArray[np.float64]:
        """The values as numpy sees them."""
        return np.frombuffer(self.values, dtype=np.float64) if self.values else np.zeros(0)


@dataclass(slots=True)
class Table:
    """Rows in the order they were written; each has a step and some of the columns."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    series: dict[str, Series] = field(default_factory=dict)
    dropped: int = 0
    """Names beyond `MAX_COLUMNS` that were left out."""

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """One more row."""
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
        """Many rows at once; every column has one value for each of them."""
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
        """(row, step, values) in order, of the chosen rows or all.

        `names` says which columns are wanted: the log's own name → (ours, factor).
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
        """(step, values) of all rows, under the log's own names."""
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
    """A table of series that each have steps of their own: `{name: (steps, values)}`.

    For stores that keep every number by itself. Rows are the steps, in order, each once; of several
    values at one step the last counts.
    """
    steps = sorted({int(step) for own, _ in points.values() for step in own})
    row_of = {step: row for row, step in enumerate(steps)}
    table = Table(array("q", steps))
    for name, (own, values) in points.items():
        last = {row_of[int(step)]: float(value) for step, value in zip(own, values, strict=True)}
        rows = sorted(last)
        table.series[name] = Series(array("q", rows), array("d", [last[row] for row in rows]))
    return table


# A log that was read: its numbers, what they mean, and how much of it was understood.

Unit = Literal["step", "epoch", "row"]
"""What the number of a row counts: optimizer steps, epochs, or, where there is none, rows."""


@dataclass(slots=True)
class LogEvent:
    """Something a log tells between its numbers: an overflow, a restart, a traceback."""

    row: int
    """How many rows came before it."""
    kind: str
    """`scaler-skip`, `restart`, `exception`, `out-of-memory`, `killed`, `note`."""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Log:
    """What a reader hands over."""

    format: str
    """The reader's name: `hf-trainer`, `megatron`, `tensorboard`, …"""
    path: Path
    table: Table
    unit: Unit = "step"
    signals: dict[str, Signal] = field(default_factory=dict)
    """What the reader knows of a column, by the log's own name for it. A column that is not here is
    described from its rows: a value of its own step, present every so many steps."""
    names: dict[str, str] = field(default_factory=dict)
    """The log's own name → ours, where the general vocabulary (`names.py`) would not guess it; an
    empty string: not a signal at all."""
    lines: int = 0
    """Lines (records, points) there are …"""
    used: int = 0
    """… and those that numbers came from."""
    events: list[LogEvent] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings the log itself tells: `max_norm`, `precision`, `logging_steps`, …"""
    notes: list[str] = field(default_factory=list)
    """What a reader of the report should know: torn lines, files joined."""

    @property
    def share(self) -> float:
        """The share of the lines that were used."""
        return self.used / self.lines if self.lines else 0.0


# Points of stores that keep every number by itself, put side by side in rows by their step.


def add_points(table: Table, points: Iterable[tuple[str, array[int], array[float]]]) -> bool:
    """Adds (name, steps, values), by rising step; False when there are none.

    No point is lost: a second value of a name at one step stands in a second row of that step.
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
    """Where every point is at step 0, its writer gave no step: the rows are counted instead."""
    steps = np.frombuffer(log.table.steps, dtype=np.int64)
    if len(steps) > 1 and not steps.any():
        log.table.steps = array("q", range(len(steps)))
        log.unit = "row"
        log.notes.append("no point has a step: they are numbered in their order")


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
    """How many of the same step stand before, in sorted steps."""
    places = np.arange(len(steps))
    first = np.concatenate(([True], steps[1:] != steps[:-1]))
    return places - np.maximum.accumulate(np.where(first, places, 0))
