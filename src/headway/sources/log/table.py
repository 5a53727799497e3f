"""Rows of named numbers, as some other tool logged them.

Held by column, in plain arrays: a log of a million steps fits in memory, and questions about a
whole column are one numpy call.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 2000
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
    """Names beyond `MOST_COLUMNS` that were left out."""

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """One more row."""
        row = len(self.steps)
        self.steps.append(step)
        for name, value in values.items():
            series = self.series.get(name)
            if series is None:
                if len(self.series) >= MOST_COLUMNS:
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
