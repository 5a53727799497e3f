"""Points of stores that keep every number by itself, put side by side in rows by their step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headway.sources.log.log import Log
from headway.sources.log.table import MOST_COLUMNS, Series, Table


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
        if name not in table.series and len(table.series) >= MOST_COLUMNS:
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
