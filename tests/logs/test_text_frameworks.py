"""Consoles of frameworks: recognised by their lines, steps and numbers as they were logged."""

# ruff: noqa: E501
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from headway.logs import readers
from headway.logs.log_table import Log

DATA = Path(__file__).parent.parent / "data" / "text"

# folder → format, unit, first and last step, the first bad step, column of the loss, of the norm
KNOWN = {
    "megatron": ("megatron", "step", 1, 80, 50, "lm loss", "grad norm"),
    "nemo": ("nemo", "step", 0, 79, 49, "reduced_train_loss", None),
    "torchtitan": ("torchtitan", "step", 1, 80, 50, "loss", "grad_norm"),
    "nanotron": ("nanotron", "step", 1, 80, 50, "lm_loss", "grad_norm"),
    "nanogpt": ("nanogpt", "step", 0, 79, 49, "loss", None),
    "olmo_core": ("olmo-core", "step", 1, 80, 50, "train/CE loss", "optim/total grad norm"),
    "verl": ("verl", "step", 1, 80, 50, "actor/pg_loss", "actor/grad_norm"),
    "timm": ("timm", "step", 0, 79, 49, "Loss", None),
    "mmengine": ("mmengine", "step", 5, 80, 50, "loss", "grad_norm"),
    "fairseq": ("fairseq", "step", 5, 80, 50, "loss", "gnorm"),
    "keras": ("keras", "epoch", 1, 16, 11, "loss", None),
    "ultralytics": ("ultralytics-console", "epoch", 1, 16, 11, "box_loss", None),
    "torchvision": ("torchvision", "step", 0, 75, 50, "loss", None),
    "detectron2": ("detectron2", "step", 4, 79, 49, "total_loss", None),
    "plain": ("text", "epoch", 2, 9, 6, "Total Loss", "Total Grad Norm"),
    "deepspeed": ("deepspeed", "step", 1, 80, 50, "loss", None),
}


def read(folder: str, kind: str) -> Log:
    return readers.read(DATA / folder / f"{kind}.log")


@pytest.mark.parametrize("folder", KNOWN)
def test_healthy(folder: str) -> None:
    name, unit, first, last, _, loss, norm = KNOWN[folder]
    log = read(folder, "healthy")
    assert (log.format, log.unit) == (name, unit)
    assert (log.table.steps[0], log.table.steps[-1]) == (first, last)
    assert list(log.table.steps) == sorted(log.table.steps)
    for column in filter(None, (loss, norm)):
        assert np.isfinite(log.table.series[column].numbers()).all()
    losses = log.table.series[loss].numbers()
    assert losses[0] > 2 * losses[-1] > 0
    assert not log.events
    assert not log.notes
    assert 0 < log.used <= log.lines


@pytest.mark.parametrize("folder", KNOWN)
def test_nan_from_a_step_on(folder: str) -> None:
    _, _, _, _, onset, loss, norm = KNOWN[folder]
    log = read(folder, "nan")
    for column in filter(None, (loss, norm)):
        series = log.table.series[column]
        bad = np.flatnonzero(~np.isfinite(series.numbers()))
        assert log.table.steps[series.rows[int(bad[0])]] == onset
        assert len(bad) == len(series) - bad[0]
        assert log.signals.get(column) is None or log.signals[column].nonfinite == "kept"


@pytest.mark.parametrize("folder", ["megatron", "torchtitan", "nanogpt", "fairseq"])
def test_spike(folder: str) -> None:
    loss = KNOWN[folder][5]
    log = read(folder, "spike")
    series = log.table.series[loss]
    largest = int(np.argmax(series.numbers()))
    assert abs(log.table.steps[series.rows[largest]] - 50) <= 5


def test_every_reader_of_a_log_that_is_not_its_own_says_less() -> None:
    for path in sorted(DATA.glob("*/healthy.log")):
        folder = path.parent.name
        reader = readers.reader_for(path)
        assert reader is not None
        expected = {"hf_console": "hf-console", "lightning_bar": "lightning-bar"}
        assert expected.get(folder) == reader.format or KNOWN[folder][0] == reader.format


def test_what_the_numbers_mean() -> None:
    megatron = read("megatron", "healthy")
    assert megatron.signals["lm loss"].fold == "mean"
    assert megatron.signals["lm loss"].scope == "global"
    assert megatron.facts["max_norm"] == 1.0
    assert megatron.facts["precision"] == "bf16"
    assert megatron.facts["units"] == {"elapsed time per iteration": "ms"}
    mmengine = read("mmengine", "healthy").signals["loss"]
    assert (mmengine.span, mmengine.fold, mmengine.every) == (10, "mean", 5)
    fairseq = read("fairseq", "healthy").signals
    assert (fairseq["gnorm"].span, fairseq["gnorm"].fold) == (5, "mean")
    assert read("nanotron", "healthy").table.series["consumed_tokens"].values[5] == 1_570_000
    assert read("nanogpt", "healthy").table.series["eval/val loss"].values[0] == pytest.approx(
        9.82, abs=0.01
    )
    assert read("torchtitan", "healthy").facts["units"]["memory"] == "GiB"


def test_deepspeed_tells_of_overflows() -> None:
    log = read("deepspeed", "nan")
    kinds = [event.kind for event in log.events]
    assert kinds == ["scaler-skip"] * 16 + ["exception"]
    assert dict(log.events[0].data) == {"attempted": 65536.0, "reducing_to": 32768.0}
    assert log.events[0].row == 49
    scale = log.table.series["loss_scale"]
    assert log.table.steps[scale.rows[0]] == 50
    assert scale.values[0] == 32768.0
    skipped = log.table.series["skipped"]
    assert sum(skipped.values) == 16
    assert max(skipped.values) == 1
    assert log.signals["skipped"].fold == "sum"
    assert "already at minimum" in log.events[-1].data["error"]


@pytest.mark.parametrize("kind", ["healthy", "quiet"])
def test_hf_console_finds_its_steps(kind: str) -> None:
    log = read("hf_console", kind)
    assert (log.format, log.unit) == ("hf-console", "step")
    loss = log.table.series["loss"]
    assert [log.table.steps[row] for row in loss.rows] == list(range(5, 61, 5))
    held = log.table.series["eval_loss"]
    assert [log.table.steps[row] for row in held.rows] == [16, 32, 48, 64]
    assert log.facts["logging_steps"] == 5
    signal = log.signals["loss"]
    assert (signal.span, signal.fold, signal.nonfinite, signal.digits) == (5, "mean", "filtered", 4)
    assert log.signals["grad_norm"].fold == "last"
    assert "train_runtime" not in log.table.series


def test_hf_console_with_a_nan_that_is_hidden() -> None:
    log = read("hf_console", "nan")
    rows = dict(log.table.plain())
    assert rows[40]["loss"] == 0.0
    assert math.isnan(rows[40]["grad_norm"])
    assert log.signals["loss"].nonfinite == "filtered"
    shown = read("hf_console", "nan-unfiltered")
    assert math.isnan(dict(shown.table.plain())[40]["loss"])
    assert shown.signals["loss"].nonfinite == "kept"


def test_hf_console_of_4_without_anything_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    rows = [
        f"{{'loss': {3 - i * 0.1:.4f}, 'grad_norm': {1.5 + i}, 'learning_rate': 5e-05, 'epoch': {i / 10:.2f}}}"
        for i in range(1, 11)
    ]
    path.write_text("\n".join(rows))
    log = readers.read(path)
    assert (log.format, log.unit) == ("hf-console", "row")
    assert list(log.table.steps) == list(range(1, 11))
    path.write_text("\n".join(["  Num Epochs = 1", "  Total optimization steps = 1,000", *rows]))
    log = readers.read(path)
    assert (log.unit, list(log.table.steps)) == ("step", list(range(100, 1001, 100)))


@pytest.mark.parametrize(("kind", "first_bad"), [("healthy", None), ("nan", 14)])
def test_lightning_bars(kind: str, first_bad: int | None) -> None:
    log = read("lightning_bar", kind)
    assert log.format == "lightning-bar"
    assert list(log.table.steps) == list(range(1, 21))
    bad = [step for step, values in log.table.plain() if math.isnan(values["train_loss"])]
    assert bad == ([] if first_bad is None else list(range(first_bad, 21)))


def test_lightning_s_rich_bar() -> None:
    assert list(read("lightning_bar", "rich").table.steps) == [20]


def test_hf_console_of_4_with_long_epochs(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    banner = ["  Num Epochs = 3", "  Total optimization steps = 37,500"]
    rows = [
        f"{{'loss': 2.1, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': {round(step / 12500, 2)}}}"
        for step in range(10, 401, 10)
    ]
    path.write_text("\n".join([*banner, *rows]))
    log = readers.read(path)
    assert list(log.table.steps) == list(range(10, 401, 10))
    assert log.facts["logging_steps"] == 10
