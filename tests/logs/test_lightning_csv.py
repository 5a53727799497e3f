"""`metrics.csv`, as Lightning's own logger wrote it."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from support.store_files import DATA, column, reader_named, sound, survives

from headway.core.signals import Signal
from headway.logs import readers
from headway.logs.formats import framework_csv

FILES = DATA / "lightning-csv"


@pytest.mark.parametrize("name", ["healthy", "faulty"])
def test_every_cell_is_there(name: str) -> None:
    path = FILES / f"{name}.csv"
    log = readers.read(path)
    sound(log)
    assert (log.format, log.unit) == ("lightning-csv", "step")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for key in ("train_loss_step", "train_loss_epoch", "val_loss", "lr-AdamW", "epoch"):
        expected = {int(row["step"]): float(row[key]) for row in rows if row[key]}
        assert column(log, key) == pytest.approx(expected, nan_ok=True)
    assert log.used == log.lines == len(rows)


def test_values_of_a_step_and_means_of_an_epoch_are_told_apart() -> None:
    log = framework_csv.read_lightning_csv(FILES / "healthy.csv")
    assert log.signals["train_loss_step"] == Signal(every=2)
    assert log.signals["lr-AdamW"] == Signal(every=2)
    assert log.signals["train_loss_epoch"] == Signal(span=10, fold="mean", every=10)
    assert log.signals["val_loss"] == Signal(span=10, fold="mean", every=10)


def test_NaN_stays_NaN() -> None:
    log = framework_csv.read_lightning_csv(FILES / "faulty.csv")
    first = min(step for step, loss in column(log, "train_loss_step").items() if math.isnan(loss))
    assert first == 23


def test_damage(tmp_path: Path) -> None:
    survives(reader_named("lightning-csv"), FILES / "faulty.csv", tmp_path, 300)
