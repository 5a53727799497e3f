"""`metrics.csv` of Lightning's CSVLogger: all columns there ever were, blank where not logged.

A name that ends in `_step` is the value of its step, one in `_epoch` the mean of its epoch; what
has neither ending is told by how often it is there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headway.core.signals import Signal
from headway.sources.log.csv_rows import header_of, read_rows
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.steps import typical_gap
from headway.sources.log.table import Series, Table

FORMAT = "lightning-csv"
SAYS = "Lightning metrics.csv"

_ENDS = ("_step", "_epoch")


def recognise(sample: Sample) -> float:
    """Sure of `step` and `epoch` beside endings or blanks as only Lightning leaves them."""
    names, rows, separator = header_of(sample)
    if separator != "," or not {"step", "epoch"} <= set(names) or not rows:
        return 0.0
    ended = any(name.endswith(_ENDS) or name.startswith("lr-") for name in names)
    blank = any("" in row for row in rows)
    return 0.95 if ended else 0.85 if blank else 0.0


def read(path: Path) -> Log:
    """The whole of it."""
    log = Log(FORMAT, path, Table())
    read_rows(log, path, ",", {})
    epochs = _epochs(log.table)
    for name, series in log.table.series.items():
        if name != "epoch":
            log.signals[name] = _signal(log.table, name, series, epochs)
    return log


def _signal(table: Table, name: str, series: Series, epochs: dict[int, float]) -> Signal:
    gap = typical_gap(table, series)
    if name.endswith("_step") or name.startswith("lr"):
        return Signal(every=gap)
    own = {epochs[row] for row in series.rows if row in epochs}
    once = len(own) > 1 and len(own) == len(series)
    if name.endswith("_epoch") or name.startswith(("val", "test")) or once:
        return Signal(span=gap, fold="mean", every=gap)
    return Signal(every=gap)


def _epochs(table: Table) -> dict[int, float]:
    series = table.series.get("epoch")
    if series is None or not len(series):
        return {}
    finite = np.isfinite(series.numbers())
    return {
        row: value
        for row, value, good in zip(series.rows, series.values, finite, strict=True)
        if good
    }
