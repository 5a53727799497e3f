"""Which rows of a very long log are looked at closely."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from holdfast.sources.log.names import Named
from holdfast.sources.log.table import Table


SUMMED = ("nan_steps",)
"""Numbers that count what happened since the row before: what lies in a gap is added after it."""


def summed(table: Table, raw: str, kept: NDArray[np.int64]) -> dict[int, float]:
    """Of a count, its sum since the kept row before, by kept row."""
    series = table.series[raw]
    rows, values = series.where(), series.numbers()
    places = np.minimum(np.searchsorted(kept, rows), len(kept) - 1)
    sums = np.bincount(places, weights=np.nan_to_num(values), minlength=len(kept))
    found = np.flatnonzero(sums)
    return dict(zip(kept[found].tolist(), sums[found].tolist(), strict=True))


def kept_rows(table: Table, names: Mapping[str, Named]) -> NDArray[np.int64] | None:
    """The rows that checks are fed; None: all of them."""
    return None
