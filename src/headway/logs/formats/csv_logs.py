"""CSV logs: any file with a header, Lightning's `metrics.csv`, Ultralytics' `results.csv`."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import numpy as np

from headway.core.signals import Signal
from headway.logs.csv_rows import header_of, read_rows
from headway.logs.log_file import Sample, sample
from headway.logs.log_table import Log, Series, Table
from headway.logs.readers import LogReader
from headway.logs.row_fields import counting, plain, typical_gap, unroll

# Any CSV file that has a header, a column that counts, and numbers.

# Two exports have ways of their own: TensorBoard's (`Wall time,Step,Value`, the tag in the file's
# name) and Weights & Biases' (`run - loss`, with `__MIN` and `__MAX` beside it).

CSV = "csv"
CSV_LABEL = "CSV of numbers"

_TAG = re.compile(r"tag-(.+)$")


def recognise_csv(sample: Sample) -> float:
    """Rather sure of a header with something that counts, and numbers below it."""
    names, rows, _ = header_of(sample)
    if not names or not rows:
        return 0.0
    return 0.7 if counting(names)[0] is not None else 0.3


def read_csv(path: Path) -> Log:
    """The whole of it."""
    looked = sample(path)
    names, _, separator = header_of(looked)
    log = Log(CSV, path, Table())
    read_rows(log, path, separator or ",", _renamed(names, path, log))
    unroll(log)
    return log


def _renamed(names: list[str], path: Path, log: Log) -> dict[str, str]:
    """The names of the two exports, as they were logged."""
    if {plain(name) for name in names} == {"wall_time", "step", "value"}:
        tag = _TAG.search(path.stem)
        value = next(name for name in names if plain(name) == "value")
        return {value: tag.group(1) if tag else path.stem}
    split = [name for name in names if " - " in name]
    if len(split) < 2:
        return {}
    runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in split))
    if len(runs) > 1:
        log.notes.append(f"{len(runs)} runs in one file: {runs[0]} is read")
    renamed = {}
    for name in split:
        run, _, own = name.rpartition(" - ")
        renamed[name] = own if run == runs[0] and not own.endswith(("__MIN", "__MAX")) else ""
    return renamed


# `metrics.csv` of Lightning's CSVLogger: all columns there ever were, blank where not logged.

# A name that ends in `_step` is the value of its step, one in `_epoch` the mean of its epoch; what
# has neither ending is told by how often it is there.

LIGHTNING_CSV = "lightning-csv"
LIGHTNING_CSV_LABEL = "Lightning metrics.csv"

_ENDS = ("_step", "_epoch")


def recognise_lightning_csv(sample: Sample) -> float:
    """Sure of `step` and `epoch` beside endings or blanks as only Lightning leaves them."""
    names, rows, separator = header_of(sample)
    if separator != "," or not {"step", "epoch"} <= set(names) or not rows:
        return 0.0
    ended = any(name.endswith(_ENDS) or name.startswith("lr-") for name in names)
    blank = any("" in row for row in rows)
    return 0.95 if ended else 0.85 if blank else 0.0


def read_lightning_csv(path: Path) -> Log:
    """The whole of it."""
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
    series = table.series.get("epoch")
    if series is None or not len(series):
        return {}
    finite = np.isfinite(series.numbers())
    return {
        row: value
        for row, value, good in zip(series.rows, series.values, finite, strict=True)
        if good
    }


# `results.csv` of Ultralytics (YOLO): one row per epoch, each loss the mean of its epoch.

ULTRALYTICS_CSV = "ultralytics"
ULTRALYTICS_CSV_LABEL = "Ultralytics results.csv"


def recognise_ultralytics_csv(sample: Sample) -> float:
    """Sure of epochs with losses of training, and its metrics or rates beside them."""
    names, _, separator = header_of(sample)
    if separator != "," or "epoch" not in names or not any(map(_is_loss, names)):
        return 0.0
    beside = any(name.startswith(("metrics/", "lr/pg", "val/")) for name in names)
    return 1.0 if beside else 0.0


def read_ultralytics_csv(path: Path) -> Log:
    """The whole of it, and a `loss` that is the sum of the losses."""
    log = Log(ULTRALYTICS_CSV, path, Table())
    names = read_rows(log, path, ",", {})
    # A `step` column is not in these files; were it there, the epoch still counts the rows.
    parts = [
        log.table.series[name] for name in names if _is_loss(name) and name in log.table.series
    ]
    if parts and "loss" not in log.table.series:
        log.table.series["loss"] = _sum(parts)
    for name in log.table.series:
        if name.startswith(("train/", "val/")) or name == "loss":
            log.signals[name] = Signal(fold="mean")
    return log


def _is_loss(name: str) -> bool:
    return name.startswith("train/") and name.endswith("loss")


def _sum(parts: list[Series]) -> Series:
    """Of the rows that have every part."""
    rows = sorted(set.intersection(*(set(part.rows) for part in parts)))
    known = [dict(zip(part.rows, part.values, strict=True)) for part in parts]
    return Series(array("q", rows), array("d", [sum(own[row] for own in known) for row in rows]))


READERS = (
    LogReader(CSV, CSV_LABEL, recognise_csv, read_csv),
    LogReader(LIGHTNING_CSV, LIGHTNING_CSV_LABEL, recognise_lightning_csv, read_lightning_csv),
    LogReader(
        ULTRALYTICS_CSV, ULTRALYTICS_CSV_LABEL, recognise_ultralytics_csv, read_ultralytics_csv
    ),
)
