"""trackio's database, against what its own reading says of it."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.store_files import DATA, column, reader_named, refuses, sound, survives

from headway.core.signals import Signal
from headway.logs import readers
from headway.logs.formats import experiment_stores

FILE = DATA / "trackio" / "project.db"
EXPECTED = {
    step: float(loss) for step, loss in json.loads(FILE.with_name("expected.json").read_text())
}


def test_every_row_of_the_newest_run_is_there() -> None:
    log = readers.read(FILE)
    sound(log)
    assert (log.format, log.unit, log.share) == ("trackio", "step", 1)
    assert column(log, "loss") == pytest.approx(EXPECTED, nan_ok=True)
    assert len(EXPECTED) == 40
    assert math.isnan(EXPECTED[31])
    assert column(log, "opt/lr")[3] == 1e-3
    assert log.notes == ["1 other runs in it were not read: before"]


def test_settings_are_facts_and_alerts_are_told() -> None:
    log = experiment_stores.read_trackio(FILE)
    assert log.facts == {"lr": 1e-3, "batch_size": 8}
    (alert,) = log.events
    assert (alert.row, alert.kind, alert.data) == (40, "note", {"text": "loss: it is NaN"})


def test_the_reader_of_MLflow_passes_it_on() -> None:
    assert experiment_stores.read_mlflow(FILE).format == "trackio"


def database(path: Path, rows: list[tuple[str, int, object]]) -> Path:
    """As an older version had it: no run_id."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE metrics (run_name TEXT, step INT, metrics TEXT)")
        connection.execute("CREATE TABLE configs (run_name TEXT, config TEXT)")
        told = '{"logging_steps": 5, "logging_nan_inf_filter": true}'
        connection.execute("INSERT INTO configs VALUES ('b', ?)", (told,))
        connection.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)
    return path


def test_an_older_one_and_the_trainer(tmp_path: Path) -> None:
    rows: list[tuple[str, int, object]] = [("a", 0, '{"train/loss": 1}')]
    for n in range(10):
        row = {"train/loss": 1.23456789, "train/grad_norm": 1.0, "train/global_step": 5 * n}
        rows.append(("b", n, json.dumps(row)))
    log = readers.read(database(tmp_path / "x.db", rows))
    assert list(log.table.steps) == [5 * n for n in range(10)]
    assert log.signals["train/loss"] == Signal(span=5, fold="mean", nonfinite="filtered", every=5)
    assert log.signals["train/grad_norm"] == Signal(every=5)


def test_odd_rows_are_passed_over(tmp_path: Path) -> None:
    odd: list[object] = ["{", "[]", None, 3, b"\xff", '{"loss": "NaN"}']
    log = experiment_stores.read_trackio(
        database(tmp_path / "x.db", [("b", n, one) for n, one in enumerate(odd)])
    )
    assert list(log.table.steps) == [5]
    assert (log.used, log.lines) == (1, 6)


def test_another_database_is_refused(tmp_path: Path) -> None:
    assert "no table `metrics`" in refuses(reader_named("trackio"), DATA / "mlflow" / "healthy.db")


def test_damage(tmp_path: Path) -> None:
    survives(reader_named("trackio"), FILE, tmp_path, 300)
