"""MLflow's two stores, against what its own client says of them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.store_files import DATA, column, reader_named, refuses, sound, survives

from headway.core.signals import Signal
from headway.logs import readers, sqlite_file
from headway.logs.formats import experiment_stores
from headway.logs.log_table import Log

FILES = DATA / "mlflow"
EXPECTED = json.loads((FILES / "expected.json").read_text())


def is_expected(log: Log, name: str) -> None:
    sound(log)
    assert (log.format, log.unit, log.share) == ("mlflow", "step", 1)
    assert log.table.series.keys() == EXPECTED[name].keys()
    for key, points in EXPECTED[name].items():
        told = {step: _infinite(value) for step, value in points}
        assert column(log, key) == pytest.approx(told, nan_ok=True)
    wanted = {"lr": 1e-3, "batch_size": 8, "optimizer": "adamw", "nesterov": False}
    assert wanted.items() <= log.facts.items()


def _infinite(value: float) -> float:
    """Its own client hands out the largest number for infinity."""
    return math.copysign(math.inf, value) if abs(value) >= experiment_stores.MLFLOW_INF else value


@pytest.mark.parametrize("name", ["healthy.db", "faulty.db"])
def test_every_point_of_the_newest_run_is_there(name: str) -> None:
    log = readers.read(FILES / name)
    is_expected(log, name)
    assert log.notes == ["1 other runs in it were not read: before"]


def test_NaN_and_infinity() -> None:
    losses = column(experiment_stores.read_mlflow(FILES / "faulty.db"), "train/loss")
    assert losses[30] == math.inf
    assert math.isnan(losses[31])


def test_a_run_of_the_older_store() -> None:
    log = experiment_stores.read_mlflow_run(FILES / "files")
    is_expected(log, "files")


def test_one_file_of_the_older_store() -> None:
    log = readers.read(FILES / "files" / "metrics" / "val_loss")
    assert (log.format, set(log.table.series)) == ("mlflow", {"val_loss"})


def test_nothing_is_written_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes((FILES / "healthy.db").read_bytes())
    before = path.stat().st_mtime_ns
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        experiment_stores.read_mlflow(path)
    finally:
        tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mtime_ns == before


# Databases of our own making


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp INT, run_uuid TEXT, step INT,"
            " is_nan BOOLEAN)"
        )
        connection.execute("CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT)")
        yield connection


def point(connection: sqlite3.Connection, step: int, value: object, key: str = "loss") -> None:
    connection.execute("INSERT INTO metrics VALUES (?, ?, 0, 'r', ?, 0)", (key, value, step))


def test_a_run_begun_anew_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with database(path) as connection:
        for step in [0, 2, 1, 3, 4, 5, 3, 4, 5, 6]:
            point(connection, step, step / 2)
    log = experiment_stores.read_mlflow(path)
    assert list(log.table.steps) == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6]
    assert [(one.row, one.kind, one.data) for one in log.events] == [(6, "restart", {"step": 3})]


def test_metrics_without_steps_and_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with database(path) as connection:
        for number in range(5):
            point(connection, 0, float(number))
            point(connection, number, 50.0, "system/cpu")
    log = experiment_stores.read_mlflow(path)
    assert (log.unit, set(log.table.series)) == ("row", {"loss"})
    assert column(log, "loss") == {n: float(n) for n in range(5)}


def test_the_trainer_says_what_its_loss_is(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with database(path) as connection:
        for name, value in (("logging_steps", "5"), ("logging_nan_inf_filter", "False")):
            connection.execute("INSERT INTO params VALUES (?, ?, 'r')", (name, value))
        for step in range(5, 50, 5):
            point(connection, step, 1.23456789)
        point(connection, 45, 1.5, "train_loss")
    log = experiment_stores.read_mlflow(path)
    assert log.names == {"train_loss": ""}
    assert log.facts["train_loss"] == 1.5
    assert log.signals["loss"] == Signal(span=5, fold="mean", nonfinite="kept", every=5)


def test_what_a_killed_run_left_in_the_journal_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run" / "x.db"
    path.parent.mkdir()
    with database(tmp_path / "other.db") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        point(connection, 1, 2.0)
        for end in ("", "-wal"):
            (path.parent / f"x.db{end}").write_bytes((tmp_path / f"other.db{end}").read_bytes())
    log = experiment_stores.read_mlflow(path)
    assert column(log, "loss") == {1: 2.0}
    assert log.notes == ["x.db-wal was read as well"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["x.db", "x.db-wal"]


ENDLESS = (
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) "
    "SELECT 'loss' AS key, n AS value, 0 AS timestamp, 'r' AS run_uuid, n AS step, 0 AS is_nan"
    " FROM c"
)


def test_a_view_without_end_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE VIEW metrics AS {ENDLESS}")
    assert "without MLflow or trackio metrics" in refuses(reader_named("mlflow"), path)


def test_a_computed_column_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TABLE metrics (key TEXT, run_uuid TEXT, step INT,"
            " value AS (length(hex(zeroblob(40000000)))))"
        )
        connection.execute("INSERT INTO metrics VALUES ('loss', 'r', 1)")
    assert "without MLflow or trackio metrics" in refuses(reader_named("mlflow"), path)


def test_a_huge_value_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "MAX_VALUE_BYTES", 1 << 16)
    path = tmp_path / "x.db"
    with database(path) as connection:
        point(connection, 1, 2.0, key="x" * (1 << 17))
    if hasattr(sqlite3.Connection, "setlimit"):
        assert "too big" in refuses(reader_named("mlflow"), path)


def test_reading_has_a_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    with database(path) as connection:
        connection.execute("BEGIN")
        for step in range(20_000):
            point(connection, step, 1.0)
        connection.execute("COMMIT")
    monkeypatch.setattr(sqlite_file, "SECONDS", -1.0)
    assert "interrupted" in refuses(reader_named("mlflow"), path)


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE a (b)")
    assert "without MLflow or trackio metrics" in refuses(reader_named("mlflow"), path)


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(experiment_stores.UnreadableInput, match="not a run of MLflow"):
        experiment_stores.read_mlflow_run(tmp_path)


@pytest.mark.parametrize("name", ["faulty.db", "files/metrics/train/loss"])
def test_damage(tmp_path: Path, name: str) -> None:
    survives(reader_named("mlflow"), FILES / name, tmp_path, 300)
