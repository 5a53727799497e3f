"""A JSON text that holds a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.store_files import column, reader_named, refuses, sound, survives

from headway.errors import UnreadableInput
from headway.logs import readers
from headway.logs.log_table import Log

ROWS = [{"step": 10 * n, "loss": 2.5 - n / 10, "lr": 0.1} for n in range(10)]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def read(path: Path, inside: Any, **how: Any) -> Log:
    path.write_text(json.dumps(inside, **how))
    log = readers.read(path)
    sound(log)
    return log


@pytest.mark.parametrize(
    "inside",
    [
        ROWS,
        {"history": ROWS},
        {"name": "run", "seed": 3, "logs": {"train": ROWS, "few": ROWS[:2]}},
        COLUMNS,
        {"history": COLUMNS, "params": {"epochs": 3}},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_rows_and_columns(tmp_path: Path, inside: Any, indent: int | None) -> None:
    log = read(tmp_path / "x.json", inside, indent=indent)
    assert (log.format, log.unit) == ("json", "step")
    assert column(log, "loss") == {row["step"]: row["loss"] for row in ROWS}


@pytest.mark.parametrize("inside", [ROWS * 2000, {"history": ROWS * 2000}])
def test_large_ones_are_known_by_their_beginning(tmp_path: Path, inside: Any) -> None:
    assert len(read(tmp_path / "x.json", inside).table) == 20000


def test_large_columns(tmp_path: Path) -> None:
    log = read(tmp_path / "x.json", {"loss": [2.5] * 30000, "acc": [0.5] * 30000})
    assert (len(log.table), log.unit) == (30000, "row")


def test_a_history_of_keras_has_rows(tmp_path: Path) -> None:
    log = read(tmp_path / "x.json", {"loss": [2.5, 1.5], "val_loss": [2.5, 1.5], "x": [1.0]})
    assert log.unit == "row"
    assert set(log.table.series) == {"loss", "val_loss"}
    assert log.notes == ["1 columns skipped: not 2 values like the others: x"]


def test_settings_beside_the_rows_are_facts(tmp_path: Path) -> None:
    assert read(tmp_path / "x.json", {"lr": 0.1, "history": ROWS}).facts == {"lr": 0.1}


@pytest.mark.parametrize(
    "inside",
    [
        {"hidden_size": 768, "layer_norm_eps": 1e-5, "architectures": ["x"]},
        {"added_tokens": [{"id": 0, "content": "x"}]},
        {"router_aux_loss_coef": 0.1},
        [1, 2, 3],
        [],
        {},
        "loss",
    ],
)
def test_other_JSON_is_not_taken(tmp_path: Path, inside: Any) -> None:
    path = tmp_path / "x.json"
    for indent in (None, 1):
        path.write_text(json.dumps(inside, indent=indent))
        with pytest.raises(UnreadableInput):
            readers.read(path)


def test_a_torn_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(ROWS)[:-20])
    assert "is not a complete JSON file" in refuses(reader_named("json"), path)


def test_damage(tmp_path: Path) -> None:
    original = tmp_path / "x.json"
    original.write_text(json.dumps({"history": ROWS}))
    folder = tmp_path / "folder"
    folder.mkdir()
    survives(reader_named("json"), original, folder, 300)
