"""What trackio's own storage gives back is what the run directory holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.store_files import column
from support.tracked_runs import NAN_STEP, assert_same_rows, recorded, train

from headway.logs import readers

pytestmark = pytest.mark.trackers
trackio = pytest.importorskip("trackio")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """trackio reads where it keeps its files when it is imported."""
    from trackio import sqlite_storage, utils

    place = tmp_path / "trackio"
    for module in (utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", place)
    return place


def read(project: str) -> tuple[dict[int, dict[str, float]], list[dict[str, Any]]]:
    """(step → its values, the alerts) of the one run of a project."""
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = SQLiteStorage.get_runs(project)
    logs = SQLiteStorage.get_logs(project, run)
    rows = {}
    for log in logs:
        step = log.pop("step")
        log.pop("timestamp")
        assert step not in rows
        rows[step] = log
    return rows, SQLiteStorage.get_alerts(project, run)


def test_a_run_of_our_own(tmp_path: Path) -> None:
    from trackio.context_vars import current_run

    train(["trackio"], tmp_path / "run")
    assert current_run.get() is None, "what is active is the user's affair"
    rows, alerts = read("headway")
    assert_same_rows(rows, recorded(tmp_path / "run"))
    told = {alert["title"]: (alert["level"], alert["step"]) for alert in alerts}
    assert told["HD101 nonfinite-loss"] == ("error", NAN_STEP)


def test_in_a_project_of_that_name(tmp_path: Path) -> None:
    train(["trackio:vision"], tmp_path / "run")
    assert_same_rows(read("vision")[0], recorded(tmp_path / "run"))


@pytest.mark.parametrize("given", ["name", "object"])
def test_a_run_of_the_users_stays_open(given: str, tmp_path: Path) -> None:
    theirs = trackio.init(project="theirs", embed=False)
    train(["trackio" if given == "name" else theirs], tmp_path / "run")
    trackio.log({"after": 1.0}, step=100)
    trackio.finish()
    rows, _ = read("theirs")
    assert rows.pop(100) == {"after": 1.0}
    assert_same_rows(rows, recorded(tmp_path / "run"))


def test_our_own_reader_finds_the_same(tmp_path: Path, folder: Path) -> None:
    train(["trackio"], tmp_path / "run")
    log = readers.read(next(folder.glob("headway*.db")))
    assert column(log, "loss") == pytest.approx(
        {step: row["loss"] for step, row in recorded(tmp_path / "run").items()},
        nan_ok=True,
        rel=0,
    )
