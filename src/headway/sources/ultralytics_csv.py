"""`results.csv` of Ultralytics (YOLO): one row per epoch, each loss the mean of its epoch."""

from __future__ import annotations

from array import array
from pathlib import Path

from headway.core.signals import Signal
from headway.sources.log.csv_rows import header_of, read_rows
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.table import Series, Table

FORMAT = "ultralytics"
SAYS = "Ultralytics results.csv"


def recognise(sample: Sample) -> float:
    """Sure of epochs with losses of training, and its metrics or rates beside them."""
    names, _, separator = header_of(sample)
    if separator != "," or "epoch" not in names or not any(map(_is_loss, names)):
        return 0.0
    beside = any(name.startswith(("metrics/", "lr/pg", "val/")) for name in names)
    return 1.0 if beside else 0.0


def read(path: Path) -> Log:
    """The whole of it, and a `loss` that is the sum of the losses."""
    log = Log(FORMAT, path, Table())
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
