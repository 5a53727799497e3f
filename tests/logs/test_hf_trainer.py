"""`trainer_state.json`, as the real Trainer wrote it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.store_files import DATA, column, reader_named, refuses, sound, survives

from headway.core.signals import Signal
from headway.logs import readers
from headway.logs.formats import hf_trainer

FILES = DATA / "hf-trainer"


@pytest.mark.parametrize("name", ["healthy", "filtered", "kept"])
def test_every_point_of_the_history_is_there(name: str) -> None:
    path = FILES / f"{name}.json"
    log = readers.read(path)
    sound(log)
    assert log.format == "hf-trainer"
    history = json.loads(path.read_text())["log_history"]
    for key in ("loss", "grad_norm", "learning_rate", "eval_loss"):
        expected = {row["step"]: row[key] for row in history if key in row}
        assert column(log, key) == pytest.approx(expected, nan_ok=True)
    assert log.share == 1
    assert "train_runtime" not in log.table.series


def test_the_signals_are_told_as_they_are() -> None:
    log = hf_trainer.read_hf_trainer(FILES / "filtered.json")
    assert log.signals["loss"] == Signal(span=5, fold="mean", nonfinite="filtered", every=5)
    assert log.signals["grad_norm"] == Signal(every=5)
    assert log.signals["learning_rate"] == Signal(every=5)
    assert math.isnan(column(log, "grad_norm")[25])
    assert column(log, "loss")[30] == 0.0


def test_a_NaN_in_the_loss_says_that_nothing_was_filtered() -> None:
    log = hf_trainer.read_hf_trainer(FILES / "kept.json")
    assert log.signals["loss"].nonfinite == "kept"


def test_settings_and_the_mean_of_the_run_are_facts() -> None:
    log = hf_trainer.read_hf_trainer(FILES / "healthy.json")
    assert log.facts["max_steps"] == 40
    assert log.facts["logging_steps"] == 5
    assert log.facts["train_batch_size"] == 4
    assert log.facts["train_loss"] == pytest.approx(1.2, abs=0.5)


def write(path: Path, history: object, **state: object) -> Path:
    path.write_text(json.dumps({**state, "log_history": history}))
    return path


def test_rows_know_better_than_a_setting_nobody_used(tmp_path: Path) -> None:
    rows = [{"step": 30 * n, "loss": 2.5 - n / 10} for n in range(1, 6)]
    log = hf_trainer.read_hf_trainer(write(tmp_path / "s.json", rows, logging_steps=500))
    assert log.signals["loss"].span == 30
    assert log.signals["loss"].digits == 5


def test_odd_rows_are_passed_over(tmp_path: Path) -> None:
    rows = [3, None, {"loss": 1.0}, {"step": "x", "loss": 1}, {"step": 1, "loss": "nan"}]
    log = hf_trainer.read_hf_trainer(write(tmp_path / "s.json", rows))
    assert len(log.table) == 1
    assert (log.used, log.lines) == (1, 5)
    assert math.isnan(log.table.series["loss"].values[0])


@pytest.mark.parametrize("end", ["", "]", ", ]}", ", {", "}", "]]}", " 1]}"])
def test_a_torn_history_is_refused(tmp_path: Path, end: str) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"log_history": [{"step": 1, "loss": 2.5}' + end)
    if end == ", ]}":  # one comma too many, and all of it is there
        assert len(hf_trainer.read_hf_trainer(path).table) == 1
    else:
        refuses(reader_named("hf-trainer"), path)


def test_a_history_within_something_else_is_not_it(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"x": {"log_history": [{"step": 1, "loss": 2.5}]}}')
    refuses(reader_named("hf-trainer"), path)


@pytest.mark.parametrize("text", ["{", '{"log_history": 3}', "[]", "[" * 100_000, '{"a": 1}'])
def test_what_is_none_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    assert str(path) in refuses(reader_named("hf-trainer"), path)


def test_damage(tmp_path: Path) -> None:
    survives(reader_named("hf-trainer"), FILES / "filtered.json", tmp_path, 300)
