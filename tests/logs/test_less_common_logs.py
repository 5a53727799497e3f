"""Dialects in which the loss has no name or another one, or the counter is not first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from headway.logs import readers
from headway.logs.log_names import map_names

LINES: dict[str, tuple[list[str], Callable[[int, float], str]]] = {
    "tacotron": ([], lambda n, v: f"Train loss {n} {v:.6f} Grad Norm 1.234567 2.10s/it"),
    "tinygrad": (
        [],
        lambda n, v: f"{n:3d}  120.10 ms run, 100.10 ms python, {v:7.2f} loss, 0.001000 LR",
    ),
    "catboost": ([], lambda n, v: f"{n}:\tlearn: {v:.7f}\ttest: 0.7\tbest: 0.7 (0)\ttotal: 1ms"),
    "darknet": (
        [],
        lambda n, v: f" {n}: {v:.6f}, 3.100000 avg loss, 0.001000 rate, 3.2 seconds, 64 images",
    ),
    "lightgbm": ([], lambda n, v: f"[{n}]\ttraining's l2: {v:.6f}\tvalid_1's l2: 0.7"),
    "xgboost": ([], lambda n, v: f"[{n}]\ttrain-rmse:{v:.5f}\tvalid-rmse:0.7"),
    "hifigan": ([], lambda n, v: f"Steps : {n}, Gen Loss Total : {v:.3f}, s/b : 0.312"),
    "model card": (
        ["| Training Loss | Epoch | Step | Validation Loss |", "|:---:|:---:|:---:|:---:|"],
        lambda n, v: f"| {v:.4f} | {n / 10} | {n} | 0.7 |",
    ),
    "data frame": (
        ["     step  train_loss  val_loss"],
        lambda n, v: f"{n:<5d}{n:5d}  {v:10.4f}    0.7000",
    ),
    "spacy": (
        ["E    #       LOSS NER  ENTS_F", "---  ------  --------  ------"],
        lambda n, v: f"  0  {n:6d}  {v:8.2f}   50.00",
    ),
    "lcurve": (
        ["#  step      rmse_val    rmse_trn    lr"],
        lambda n, v: f"{n:7d}      7.0e-01    {v:.2e}    1.0e-03",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_the_loss_of_every_step_is_read(tmp_path: Path, name: str) -> None:
    head, line = LINES[name]
    path = tmp_path / "train.log"
    losses = {n: round(2 - n / 1000, 2) for n in range(100, 700, 10)}
    rows = [line(n, value) for n, value in losses.items()]
    path.write_text("\n".join([*head, *rows]) + "\n")
    log = readers.read(path)
    named = map_names(log.table.series, log.names, log.facts.get("units"))
    [loss] = [raw for raw, ours in named.items() if ours.name == "loss"]
    found = dict(zip(log.table.steps, log.table.series[loss].values, strict=True))
    assert found == pytest.approx(losses)


def test_validation_in_a_line_that_begins_with_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = [
        f"{n}/60 * Epoch ({n}): train: loss: 0.5\n* Epoch (valid): loss: 0.7" for n in range(1, 60)
    ]
    path.write_text("\n".join(lines))
    assert {"loss", "eval/loss"} <= set(readers.read(path).table.series)


def test_the_steps_of_an_epoch_in_every_row(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(f"epoch {n} | steps: 500 | loss: 0.{n}" for n in range(10, 90)))
    steps = readers.read(path).table.steps
    assert {later - step for step, later in pairwise(steps)} == {500}


@pytest.mark.parametrize(
    ("columns", "loss"),
    [
        (["ppo/loss/total", "objective/kl"], "ppo/loss/total"),
        (["Gen Loss Total", "Gen Loss Mel"], "Gen Loss Total"),
        (["LossPi", "LossV"], None),
        (["loss_a", "loss_b", "mae"], None),
        (["loss", "rmse"], "loss"),
        (["rmse", "auc"], "rmse"),
    ],
)
def test_a_loss_under_another_name(columns: list[str], loss: str | None) -> None:
    found = [raw for raw, ours in map_names(columns).items() if ours.name == "loss"]
    assert found == ([loss] if loss else [])


def test_a_rate_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text("\n".join(f"step {n}/90 | loss 2.{n} | {500 + n} tok/s" for n in range(10, 90)))
    log = readers.read(path)
    assert [ours.name for raw, ours in map_names(log.table.series).items() if raw == "tok/s"] == [
        "tokens_per_s"
    ]
