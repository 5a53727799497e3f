"""Selects the rows of a very long log that the checks receive.

Checks take their time over every row, and a log may have millions. Of a long one they are fed the
beginning and the end, the surroundings of everything that stands out, and stretches of neighbouring
rows at regular distances, so that levels, spreads and patterns from row to row are still there.
What stands out is found by whole columns at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from headway.logs.log_names import Named
from headway.logs.log_table import Series, Table
from headway.rundir.downsample import PICKED_ROWS, pick_rows

Rows = NDArray[np.int64]
Numbers = NDArray[np.float64]

LONG = 30_000
"""A log of no more rows is looked at whole."""
HEAD, TAIL = 1000, 1200
"""Rows at the beginning and the end."""
STRETCH, STRETCHES = 100, 40
"""Neighbouring rows, and how many such stretches there are at regular distances."""
BEFORE, AFTER = 300, 100
"""Rows around what stands out: enough before it that a check knows what was usual."""
BLOCK = 64
"""Columns are screened in blocks of so many values."""
LOSSES = ("loss", "grad_norm")
RATES = ("lr", "loss_scale")
SUMMED = ("nan_steps",)
"""Numbers that count what happened since the row before: what lies in a gap is added after it."""
COUNTED = (*SUMMED, "scaler_skipped")


def select_rows(
    table: Table, names: Mapping[str, Named], also: Iterable[int] = ()
) -> NDArray[np.int64] | None:
    """The rows that checks are fed; None: all of them. `also`: rows where something happened."""
    count = len(table)
    if count <= LONG:
        return None
    places: list[int] = [int(row) for row in pick_rows(np.fromiter(also, np.int64))]
    places += _restarts(table)
    for raw, named in names.items():
        series = table.series.get(raw)
        if series is None or len(series) < 2:
            continue
        rows = series.where()
        places += [int(rows[at]) for at in _places(named.name, series) if at < len(rows)]
    keep = np.zeros(count, dtype=bool)
    keep[:HEAD] = keep[-TAIL:] = True
    for begin in np.linspace(0, count - STRETCH, STRETCHES).astype(np.int64).tolist():
        keep[begin : begin + STRETCH] = True
    for place in places:
        keep[max(place - BEFORE, 0) : place + AFTER] = True
    return np.flatnonzero(keep).astype(np.int64)


def summed(table: Table, raw: str, kept: Rows) -> dict[int, float]:
    """Of a count, its sum since the kept row before, by kept row."""
    series = table.series[raw]
    rows, values = series.where(), series.numbers()
    places = np.minimum(np.searchsorted(kept, rows), len(kept) - 1)
    sums = np.bincount(places, weights=np.nan_to_num(values), minlength=len(kept))
    found = np.flatnonzero(sums)
    return dict(zip(kept[found].tolist(), sums[found].tolist(), strict=True))


def _restarts(table: Table) -> list[int]:
    steps = np.frombuffer(table.steps, dtype=np.int64)
    back = np.flatnonzero(steps[1:] < steps[:-1]) + 1
    return [int(row) for row in pick_rows(back)]


def _places(name: str, series: Series) -> list[int]:
    """Positions in a series that stand out."""
    values = series.numbers()
    if name in COUNTED:
        return _events(values > 0)
    if name not in (*LOSSES, *RATES) and not name.startswith("loss/"):
        return []
    places: list[int] = []
    finite = np.isfinite(values)
    if not finite.all():
        places += _events(~finite)
        values = np.where(finite, values, np.nanmedian(values[finite]) if finite.any() else 0.0)
    if name in RATES:
        return places + _turns(values)
    places += _outliers(values)
    return places + _levels(values)


def _events(flags: NDArray[np.bool_]) -> list[int]:
    """Where flags begin and end; runs that are close together are one."""
    at = np.flatnonzero(flags)
    if not len(at):
        return []
    breaks = np.flatnonzero(np.diff(at) > AFTER)
    begins = at[np.concatenate([[0], breaks + 1])]
    ends = at[np.concatenate([breaks, [len(at) - 1]])]
    return [int(row) for row in (*pick_rows(begins), *pick_rows(ends))]


def _blocks(values: Numbers) -> Numbers:
    whole = len(values) // BLOCK * BLOCK
    return values[:whole].reshape(-1, BLOCK)


def _outliers(values: Numbers) -> list[int]:
    """The values furthest above their surroundings, in spreads of these."""
    blocks = _blocks(values)
    if len(blocks) < 3:
        return []
    tops = blocks.argmax(axis=1)
    peaks = blocks[np.arange(len(blocks)), tops]
    # A sample of each block tells its level and spread well enough to rank what stands out.
    part = np.sort(blocks[:, ::4], axis=1)
    middle, width = part[:, part.shape[1] // 2], part[:, -4] - part[:, 3]
    usual = np.median(width)
    # Against the block before as well: a rise within the block widens its own spread.
    level = np.minimum(middle, np.concatenate([middle[:1], middle[:-1]]))
    calm = np.maximum(np.minimum(width, np.concatenate([width[:1], width[:-1]])), usual / 10)
    strength = (peaks - level) / np.maximum(calm, 1e-12 + 1e-6 * np.abs(level))
    return _strongest(strength, np.arange(len(blocks)) * BLOCK + tops, least=8.0)


def _levels(values: Numbers) -> list[int]:
    """Where the level of some blocks differs most from that of the blocks before."""
    blocks = _blocks(values)
    if len(blocks) < 16:
        return []
    levels = np.median(blocks[:, ::4], axis=1)
    found: list[int] = []
    for reach in (4, 32):
        if len(levels) < 4 * reach:
            continue
        sums = np.concatenate([[0.0], np.cumsum(levels)])
        means = (sums[reach:] - sums[:-reach]) / reach
        change = means[reach:] - means[:-reach]  # between the blocks before and after
        usual = np.median(np.abs(change)) + 1e-12 + 1e-9 * abs(float(np.median(levels)))
        found += _strongest(change / usual, (np.arange(len(change)) + reach) * BLOCK, least=10.0)
    return found


def _turns(values: Numbers) -> list[int]:
    """Where a rate or a scale jumps, up or down, by a factor of 1.3 or more."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = values[1:] / values[:-1]
    return _events(np.concatenate([[False], (ratio > 1.3) | (ratio < 1 / 1.3)]))


def _strongest(strength: Numbers, at: Rows, least: float) -> list[int]:
    """The strongest places, and of those that are as strong the first."""
    strong = np.flatnonzero(strength > least)
    if not len(strong):
        return []
    if len(strong) > PICKED_ROWS:
        order = strong[np.argsort(-strength[strong], kind="stable")[:PICKED_ROWS]]
        strong = np.unique(np.concatenate([order, strong[:3]]))
    return [int(place) for place in at[strong]]
