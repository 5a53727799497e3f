"""The layers of a run as JSON for the page's scripts: heat maps, and which layer changed first."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.numbers import say
from headway.output.display_text import clean
from headway.output.html.chart_json import LONGEST_NAME, flags
from headway.output.view import CauseView
from headway.rundir.chart_data import NONFINITE_SHARE, ChartData
from headway.rundir.downsample import Floats, Ints
from headway.rundir.heat_map import (
    ABSENT,
    BAD,
    ZERO,
    HeatMap,
    MeasuredColumns,
    find_first_change,
    measured_columns,
)
from headway.rundir.timeline import find_step

MAX_CHANGES = 3
"""Layers that changed first, of as many errors."""
MAP_TITLES = {
    "param/grad_norm": "Gradient norm",
    "param/update_ratio": "Update ÷ weight",
    "param/weight_norm": "Weight norm",
    NONFINITE_SHARE: "Non-finite share",
}
"""Quantities of the layers, in the order in which one can choose them."""
LEVELS = 252
"""Steps between the smallest and the largest value of a row; three codes say that there is none."""


def heat_maps(data: ChartData) -> list[dict[str, Any]]:
    """The layer × step heat maps."""
    return [_heat_map(name, data.maps[name], data) for name in MAP_TITLES if name in data.maps]


def _heat_map(name: str, picture: HeatMap, data: ChartData) -> dict[str, Any]:
    columns = measured_columns(picture)
    lows, sizes, packed = _pack_rows(columns.codes)
    return {
        "id": name.replace("/", "-"),
        "title": MAP_TITLES[name],
        "rows": [clean(row)[:LONGEST_NAME] for row in picture.rows],
        "types": [clean(data.layer_types.get(row, ""))[:LONGEST_NAME] for row in picture.rows],
        "starts": columns.starts.tolist(),
        "ends": columns.ends.tolist(),
        "lows": lows.tolist(),
        "sizes": [round(size, 4) for size in sizes.tolist()],
        "codes": base64.b64encode(packed.tobytes()).decode("ascii"),
        "says": describe_heat_map(data, name),
    }


def _pack_rows(codes: NDArray[np.int16]) -> tuple[Ints, Floats, NDArray[np.uint8]]:
    """The lowest value of each row, the size of its levels, and the level of each cell.

    Levels begin at 3: 0 is absent, 1 is zero, 2 is not finite.
    """
    wide = codes.astype(np.int64)
    known = (codes != ABSENT) & (codes != ZERO) & (codes != BAD)
    some = known.any(axis=1)
    lows = np.where(some, np.where(known, wide, BAD).min(axis=1, initial=BAD), 0)
    highs = np.where(some, np.where(known, wide, ABSENT).max(axis=1, initial=ABSENT), 0)
    sizes = np.maximum((highs - lows) / LEVELS, 1e-3)
    levels = 3 + np.round((wide - lows[:, None]) / sizes[:, None])
    special = np.select([codes == ZERO, codes == BAD], [1, 2], 0)
    return lows, sizes, np.where(known, levels, special).astype(np.uint8)


def first_changes(causes: Sequence[CauseView], data: ChartData) -> list[dict[str, Any]]:
    """Which layer changed first before each error, by the gradient norms."""
    picture = data.maps.get("param/grad_norm")
    errors = sorted({flag["x"] for flag in flags(causes, data) if flag["severity"] == "error"})
    found: list[dict[str, Any]] = []
    if picture is None:
        return found
    for x in errors:
        change = find_first_change(picture, x)
        if change is None or any(known["row"] == clean(change.row) for known in found):
            continue
        kind = data.layer_types.get(change.row, "")
        grown = change.factor >= 1
        factor = change.factor if grown else 1 / change.factor
        size = f"{factor:,.0f}" if factor < 1e6 else say(factor)
        named = f"{change.row} ({kind})" if kind else change.row
        others = f", with {change.together} more" if change.together else ""
        text = (
            f"Before step {find_step(data.jumps, x)}, {named} changed first{others}: its gradient "
            f"norm {'rose' if grown else 'fell'} from step {find_step(data.jumps, change.x)} on, "
            f"by a factor of {size} in the end."
        )
        row = clean(change.row)[:LONGEST_NAME]
        found.append({"row": row, "x": change.x, "to": x, "text": clean(text)})
    return found[:MAX_CHANGES]


def describe_heat_map(data: ChartData, name: str) -> str:
    """A text description of a heat map."""
    picture = data.maps[name]
    columns = measured_columns(picture)
    codes, parts = columns.codes, []
    known = (codes != ABSENT) & (codes != BAD) & (codes != ZERO)
    if known.any():
        row, cell = divmod(int(np.where(known, codes, ABSENT).argmax()), codes.shape[1])
        parts.append(
            f"Largest: about {say(10 ** (codes[row, cell] / 100))} in {picture.rows[row]}, "
            f"{_describe_column(columns, cell, data)}"
        )
    bad = codes == BAD
    if bad.any():
        cell = int(np.flatnonzero(bad.any(axis=0))[0])
        row = int(np.flatnonzero(bad[:, cell])[0])
        parts.append(
            f"Non-finite in {int(bad.any(axis=1).sum())} of {len(picture.rows)} rows, first "
            f"{_describe_column(columns, cell, data)} in {picture.rows[row]}"
        )
    if picture.left_out:
        parts.append(f"At least {picture.left_out} more tensors are not shown")
    return clean(". ".join(parts))


def _describe_column(columns: MeasuredColumns, cell: int, data: ChartData) -> str:
    first, last = int(columns.starts[cell]), min(int(columns.ends[cell]), data.end)
    step = find_step(data.jumps, first)
    return f"step {step}" if last <= first else f"steps {step} to {find_step(data.jumps, last)}"
