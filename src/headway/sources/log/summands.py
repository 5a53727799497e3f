"""The parts of a loss that are not called losses: `loss=1.20 (recon=0.80, reg=0.40)`.

The numbers tell: columns whose sum is the loss, row by row, to the last digit that was printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from headway.sources.log.names import Named
from headway.sources.log.table import Table

LEAST_ROWS, MOST_ROWS = 8, 500
"""Fewer rows may agree by chance; more are no better proof."""
MOST_COLUMNS, MOST_PARTS = 10, 4
MOST_DECIMALS = 6
SHARE = 0.95
"""Of the rows in which the sum must hold: one may be torn."""


def summands(table: Table, names: Mapping[str, Named]) -> dict[str, Named]:
    """Names for the columns that add up to the loss and have no name yet."""
    total = next((raw for raw, item in names.items() if item.name == "loss"), None)
    if total is None or total not in table.series:
        return {}
    series = table.series[total]
    where = series.where()
    if len(where) < LEAST_ROWS:
        return {}
    loss = series.numbers()[:MOST_ROWS]
    columns: dict[str, NDArray[np.float64]] = {}
    for raw, other in table.series.items():
        known = names.get(raw)
        if raw == total or (known is not None and not known.name.startswith("loss/")):
            continue
        if len(other) == len(series) and np.array_equal(other.where(), where):
            values = other.numbers()[:MOST_ROWS]
            # A constant says nothing: a column of zeros is part of every sum.
            if np.isfinite(values).any() and np.ptp(values[np.isfinite(values)]) > 0:
                columns[raw] = values
    if not 2 <= len(columns) <= MOST_COLUMNS:
        return {}
    return {
        raw: Named(f"loss/{raw.strip().lower().replace(' ', '_')}")
        for raw in _adding_up(loss, columns)
        if raw not in names
    }


def _adding_up(
    loss: NDArray[np.float64], columns: Mapping[str, NDArray[np.float64]]
) -> tuple[str, ...]:
    own = 10.0 ** -_decimals(loss)
    units = {raw: 10.0 ** -_decimals(values) for raw, values in columns.items()}
    finite = np.isfinite(loss)
    for values in columns.values():
        finite = finite & np.isfinite(values)
    if finite.sum() < LEAST_ROWS:
        return ()
    for size in range(2, min(MOST_PARTS, len(columns)) + 1):
        for chosen in combinations(columns, size):
            allowed = 0.6 * (own + sum(units[raw] for raw in chosen))
            parts = [columns[raw][finite] for raw in chosen]
            # Each must matter beyond rounding, else it is in the sum by chance.
            if any(np.median(np.abs(part)) < 4 * allowed for part in parts):
                continue
            if np.mean(np.abs(np.sum(parts, axis=0) - loss[finite]) <= allowed) >= SHARE:
                return chosen
    return ()


def _decimals(values: NDArray[np.float64]) -> int:
    """How many decimals a column was printed with."""
    kept = values[np.isfinite(values)]
    for decimals in range(MOST_DECIMALS):
        if np.allclose(np.round(kept, decimals), kept, rtol=1e-12, atol=1e-12):
            return decimals
    return MOST_DECIMALS
