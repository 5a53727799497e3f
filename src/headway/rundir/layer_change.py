"""Finds the layer that changed first before a bad step, from the heat map of the gradient norms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.rundir.heat_map import ABSENT, BAD, ZERO, HeatMap, measured_columns

WINDOW = 48
"""Columns before the bad step that are compared."""
LEAST_COLUMNS = 8
LEAST_CHANGE, SPREADS = 0.5, 5.0
"""A change is a factor of 3 (half a power of ten), and this many times the row's usual spread."""
SINGLE_CHANGE = 1.0
"""A change in the last column alone is a factor of 10."""


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A row whose gradient norm left its usual level and stayed away until the bad step."""

    row: str
    x: int
    """Where it left its level."""
    factor: float
    """Its last norm before the bad step ÷ its usual one."""
    together: int
    """Other rows that changed in the same column."""


def find_first_change(picture: HeatMap, x: int) -> LayerChange | None:
    """The first row that changed before `x`; None if none did, or too little is known."""
    columns = measured_columns(picture)
    # The column that contains x already has the bad values.
    before = np.flatnonzero(columns.ends < x)[-WINDOW:]
    if len(before) < LEAST_COLUMNS:
        return None
    starts, codes = columns.starts[before], columns.codes[:, before]
    known = (codes != ABSENT) & (codes != ZERO) & (codes != BAD)
    rows = np.flatnonzero(known.sum(axis=1) >= LEAST_COLUMNS)
    found: list[tuple[int, float, int]] = []
    for row in rows.tolist():
        where = np.flatnonzero(known[row])
        change = _last_change(codes[row, where] / 100.0)
        if change is not None:
            length, size = change
            found.append((int(where[-length]), size, row))
    if not found:
        return None
    column, size, row = min(found, key=lambda item: (item[0], -abs(item[1])))
    together = sum(item[0] == column for item in found) - 1
    return LayerChange(picture.rows[row], int(starts[column]), float(10.0**size), together)


def _last_change(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, float] | None:
    """Number of values at the end for which a row was off its level, and how far it is off last."""
    usual = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - usual)))
    off = np.abs(logs - usual) > max(LEAST_CHANGE, SPREADS * spread)
    length = len(off) if off.all() else int(np.argmax(~off[::-1]))
    size = float(logs[-1]) - usual
    if not length or (length == 1 and abs(size) < SINGLE_CHANGE):
        return None
    return length, size
