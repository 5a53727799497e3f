"""`results.csv` of Ultralytics: the layout of version 8.3, and the padded one before it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.store_files import column, reader_named, sound, survives

from headway.core.signals import Signal
from headway.logs import readers

NAMES = [
    "epoch",
    "time",
    "train/box_loss",
    "train/cls_loss",
    "train/dfl_loss",
    "metrics/precision(B)",
    "metrics/recall(B)",
    "metrics/mAP50(B)",
    "metrics/mAP50-95(B)",
    "val/box_loss",
    "val/cls_loss",
    "val/dfl_loss",
    "lr/pg0",
    "lr/pg1",
    "lr/pg2",
]


def results(path: Path, *, padded: bool, bad: int | None = None) -> Path:
    rows = [NAMES]
    for epoch in range(1, 11):
        loss = "nan" if bad is not None and epoch >= bad else f"{3 - epoch / 10:.5f}"
        rest = ["0.5"] * 4 + [loss] * 3 + ["0.001"] * 3
        rows.append([str(epoch), f"{epoch * 9.1:.2f}", loss, loss, loss, *rest])
    width = 23 if padded else 0
    path.write_text("".join(",".join(c.rjust(width) for c in row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("padded", [False, True])
def test_epochs_and_the_sum_of_the_losses(tmp_path: Path, padded: bool) -> None:
    log = readers.read(results(tmp_path / "results.csv", padded=padded, bad=8))
    sound(log)
    assert (log.format, log.unit) == ("ultralytics", "epoch")
    loss = column(log, "loss")
    assert loss[1] == pytest.approx(8.7)
    assert [epoch for epoch, value in loss.items() if math.isnan(value)] == [8, 9, 10]
    assert column(log, "lr/pg0")[3] == 0.001
    assert log.signals["train/box_loss"] == log.signals["loss"] == Signal(fold="mean")
    assert log.share == 1


def test_damage(tmp_path: Path) -> None:
    original = results(tmp_path / "results.csv", padded=True, bad=8)
    folder = tmp_path / "folder"
    folder.mkdir()
    survives(reader_named("ultralytics"), original, folder, 300)
