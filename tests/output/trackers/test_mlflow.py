"""What MLflow's own client finds is what the run directory holds."""

from __future__ import annotations

import math
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.store_files import column
from support.tracked_runs import assert_same_rows, recorded, train

from headway.logs import readers
from headway.output.trackers.mlflow import key_of

pytestmark = pytest.mark.trackers
mlflow = pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables: MLflow takes seconds to make one."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # artifacts lie beside it
        mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"


@pytest.fixture(autouse=True)
def client(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty, tmp_path / "mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    yield mlflow.MlflowClient()
    while mlflow.active_run() is not None:
        mlflow.end_run()


def read(client: Any, run_id: str) -> dict[int, dict[str, float]]:
    rows: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for key in client.get_run(run_id).data.metrics:
        for metric in client.get_metric_history(run_id, key):
            rows[metric.step][key] = metric.value
    return dict(rows)


def expected(run: Path) -> dict[int, dict[str, float]]:
    """MLflow's databases keep an infinity as the largest number there is."""
    return {
        step: {
            key: math.copysign(sys.float_info.max, value) if math.isinf(value) else value
            for key, value in row.items()
        }
        for step, row in recorded(run).items()
    }


def check_findings(client: Any, run_id: str) -> None:
    tags = client.get_run(run_id).data.tags
    assert "loss is NaN" in tags["headway.HD101"]
    text = mlflow.artifacts.load_text(
        f"{client.get_run(run_id).info.artifact_uri}/headway/findings.txt"
    )
    assert text.startswith("HD101 nonfinite-loss\nerror: step 30: loss is NaN")
    assert "HD201 nonfinite-gradient" in text


def test_a_run_of_our_own(client: Any, tmp_path: Path) -> None:
    dice = random.getstate()
    train(["mlflow"], tmp_path / "mine")
    assert random.getstate() == dice, "MLflow throws dice for names"
    assert mlflow.active_run() is None
    experiment = client.get_experiment_by_name("headway")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "mine"
    assert run.info.status == "FINISHED"
    assert_same_rows(read(client, run.info.run_id), expected(tmp_path / "mine"))
    check_findings(client, run.info.run_id)


def test_the_run_that_is_active(client: Any, tmp_path: Path) -> None:
    with mlflow.start_run() as active:
        train(["mlflow"], tmp_path / "run")
        assert client.get_run(active.info.run_id).info.status == "RUNNING"
        assert_same_rows(read(client, active.info.run_id), expected(tmp_path / "run"))


@pytest.mark.parametrize("form", ["run", "id", "client"])
def test_given_as_an_object_or_an_id(form: str, client: Any, tmp_path: Path) -> None:
    if form == "client":
        train([client], tmp_path / "run")
        experiment = client.get_experiment_by_name("headway")
        (run,) = client.search_runs([experiment.experiment_id])
    else:
        run = client.create_run("0")
        train([run if form == "run" else f"mlflow:{run.info.run_id}"], tmp_path / "run")
    assert_same_rows(read(client, run.info.run_id), expected(tmp_path / "run"))


def test_our_own_reader_finds_the_same(tmp_path: Path) -> None:
    train(["mlflow"], tmp_path / "run")
    log = readers.read(tmp_path / "mlflow.db")
    assert column(log, "loss") == pytest.approx(
        {step: row["loss"] for step, row in recorded(tmp_path / "run").items()}, nan_ok=True, rel=0
    )


def test_a_key_is_one_that_mlflow_accepts() -> None:
    assert key_of("grad/global_norm#1") == "grad/global_norm_1"
    assert key_of("grad_layer/a<b>.weight") == "grad_layer/a_b_.weight"
    assert len(key_of("x" * 400)) == 250
