"""What W&B's own reader of offline runs finds is what the run directory holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.store_files import column
from support.tracked_runs import NAN_STEP, assert_same_rows, recorded, train

from headway.core.numbers import decode_number
from headway.logs import readers

pytestmark = pytest.mark.trackers
pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_CONFIG_DIR": str(tmp_path / "config"),
        "WANDB_DATA_DIR": str(tmp_path / "data"),
        "WANDB_CONSOLE": "off",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def read(folder: Path) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """(row → its values, the alerts) of the one run under a folder, as `wandb leet` reads them."""
    (file,) = folder.rglob("*.wandb")
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows: dict[int, dict[str, Any]] = {}
    alerts = []
    for record in map(json.loads, done.stdout.splitlines()):
        if record["type"] == "history":
            item = dict(record["history"]["item"])
            step = int(item.pop("_step"))
            rows[step] = {
                key: decode_number(value) for key, value in item.items() if not key.startswith("_")
            }
        elif record["type"] == "alert":
            alerts.append(record["alert"])
    return rows, alerts


def test_a_run_of_our_own_has_a_row_per_step(tmp_path: Path) -> None:
    import wandb

    run = tmp_path / "run"
    train(["wandb"], run)
    assert wandb.run is None, "what is active is the user's affair"
    rows, alerts = read(run)
    assert all(row.pop("headway/step") == step for step, row in rows.items())
    assert_same_rows(rows, recorded(run))
    titles = {alert["title"]: alert["level"] for alert in alerts}
    assert titles["HD101 nonfinite-loss"] == "ERROR"
    assert any(f"step {NAN_STEP}: loss is NaN" in alert["text"] for alert in alerts)


def test_in_a_run_of_the_users_our_numbers_go_along_with_their_rows(tmp_path: Path) -> None:
    import wandb

    with wandb.init(project="theirs", dir=str(tmp_path / "theirs")) as theirs:
        for at in range(3):
            theirs.log({"mine": at}, step=at)
        train(["wandb"], tmp_path / "run")  # the run that is active
        for at in range(3, 6):
            theirs.log({"mine": at}, step=at)
        assert wandb.run is theirs
    rows, alerts = read(tmp_path / "theirs")
    assert {step: row["mine"] for step, row in rows.items() if "mine" in row} == {
        at: at for at in range(6)
    }, "nothing of theirs was dropped or moved"
    (ours,) = [row for row in rows.values() if "headway/step" in row]
    expected = recorded(tmp_path / "run")
    last = expected[int(ours["headway/step"])]
    assert all(ours[key] == value for key, value in last.items())
    assert {alert["title"][:5] for alert in alerts} >= {"HD101", "HD201"}


def test_a_run_given_as_an_object_stays_open(tmp_path: Path) -> None:
    import wandb

    theirs = wandb.init(dir=str(tmp_path / "theirs"), reinit="create_new")
    train([theirs], tmp_path / "run")
    theirs.log({"after": 1})
    theirs.finish()
    rows, _ = read(tmp_path / "theirs")
    assert any(row.get("after") == 1 for row in rows.values())


def test_our_own_reader_finds_the_same(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(["wandb"], run)
    (file,) = run.rglob("*.wandb")
    log = readers.read(file)
    assert log.format == "wandb"
    assert column(log, "loss") == pytest.approx(
        {step: row["loss"] for step, row in recorded(run).items()}, nan_ok=True, rel=0
    )
