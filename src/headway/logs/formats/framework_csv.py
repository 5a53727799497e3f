"""CSV logs of frameworks: Lightning's `metrics.csv`, Ultralytics' `results.csv`."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

from headway.core.signals import Signal
from headway.logs.formats.csv_logs import header_of, read_rows
from headway.logs.log_file import Sample
from headway.logs.log_table import Log, Series, Table
from headway.logs.readers import LogReader
from headway.logs.row_fields import typical_gap

# `metrics.csv` of Lightning's CSVLogger. A column `…_step` is the value of its step, a column
# `…_epoch` the mean of its epoch; for others it depends on how often they are logged.

LIGHTNING_CSV = "lightning-csv"

_ENDS = ("_step", "_epoch")


def recognise_lightning_csv(sample: Sample) -> float:
    """Certain of `step` and `epoch` beside the endings or blanks that only Lightning writes."""
    names, rows, separator = header_of(sample)
    if separator != "," or not {"step", "epoch"} <= set(names) or not rows:
        return 0.0
    ended = any(name.endswith(_ENDS) or name.startswith("lr-") for name in names)
    blank = any("" in row for row in rows)
    return 0.95 if ended else 0.85 if blank else 0.0


def read_lightning_csv(path: Path) -> Log:
    """Reads the whole file."""
    log = Log(LIGHTNING_CSV, path, Table())
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
    series = table.series.get("epoch", Series())
    pairs = zip(series.rows, series.values, strict=True)
    return {row: value for row, value in pairs if math.isfinite(value)}


# `results.csv` of Ultralytics (YOLO): one row per epoch; each loss is the mean of its epoch.

ULTRALYTICS_CSV = "ultralytics"


def recognise_ultralytics_csv(sample: Sample) -> float:
    """Certain of epochs with training losses, and metrics or learning rates beside them."""
    names, _, separator = header_of(sample)
    if separator != "," or "epoch" not in names or not any(map(_is_loss, names)):
        return 0.0
    beside = any(name.startswith(("metrics/", "lr/pg", "val/")) for name in names)
    return 1.0 if beside else 0.0


def read_ultralytics_csv(path: Path) -> Log:
    """Reads the whole file, and adds the sum of the losses as `loss`."""
    log = Log(ULTRALYTICS_CSV, path, Table())
    names = read_rows(log, path, ",", {})
    parts = [
        log.table.series[name] for name in names if _is_loss(name) and name in log.table.series
    ]
    if parts:
        log.table.series.setdefault("loss", _sum(parts))
    for name in log.table.series:
        if name.startswith(("train/", "val/")) or name == "loss":
            log.signals[name] = Signal(fold="mean")
    return log


def _is_loss(name: str) -> bool:
    return name.startswith("train/") and name.endswith("loss")


def _sum(parts: list[Series]) -> Series:
    """The sum in the rows that have every part."""
    rows = sorted(set.intersection(*(set(part.rows) for part in parts)))
    known = [dict(zip(part.rows, part.values, strict=True)) for part in parts]
    return Series(array("q", rows), array("d", [sum(own[row] for own in known) for row in rows]))


READERS = (
    LogReader(LIGHTNING_CSV, "Lightning metrics.csv", recognise_lightning_csv, read_lightning_csv),
    LogReader(
        ULTRALYTICS_CSV, "Ultralytics results.csv", recognise_ultralytics_csv, read_ultralytics_csv
    ),
)
