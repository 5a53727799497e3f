"""Makes the files of this folder with the real client (mlflow 3.17).

    python tests/data/mlflow/make.py

The tables that have nothing to do with runs are taken out of the database, which is a megabyte
otherwise. `expected.json` is what MLflow's own client says of the metrics.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow

HERE = Path(__file__).parent
KEPT = ("runs", "metrics", "latest_metrics", "params", "experiments", "alembic_version")


def value_at(step: int, bad: int | None) -> float:
    if bad is not None and step >= bad:
        return math.nan if step % 2 else math.inf
    return 2.5 * 0.95**step


def log_run(name: str, bad: int | None, steps: int = 40) -> dict[str, list[tuple[int, float]]]:
    with mlflow.start_run(run_name=name) as run:
        mlflow.log_params({"lr": 1e-3, "batch_size": 8, "optimizer": "adamw", "nesterov": False})
        for step in range(steps):
            mlflow.log_metric("train/loss", value_at(step, bad), step=step)
            if step % 10 == 0:
                mlflow.log_metric("val_loss", value_at(step, bad), step=step)
    client = mlflow.MlflowClient()
    return {
        key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
        for key in ("train/loss", "val_loss")
    }


def database(name: str, bad: int | None) -> dict[str, list[tuple[int, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.create_experiment("e", artifact_location="artifacts")
        mlflow.set_experiment("e")
        log_run("before", None, 5)
        found = log_run(name, bad)
        shutil.copy(Path(folder) / "mlflow.db", HERE / f"{name}.db")
    connection = sqlite3.connect(HERE / f"{name}.db", isolation_level=None)
    for kind, other in connection.execute("SELECT type, name FROM sqlite_master").fetchall():
        if kind in ("table", "view") and other not in KEPT and not other.startswith("sqlite_"):
            connection.execute(f'DROP {kind.upper()} "{other}"')
    connection.execute("UPDATE runs SET user_id = 'user', source_name = 'make.py'")
    connection.execute("UPDATE runs SET artifact_uri = 'artifacts'")
    connection.execute("UPDATE experiments SET artifact_location = 'artifacts'")
    connection.execute("PRAGMA page_size = 512")
    connection.execute("VACUUM")
    connection.close()
    return found


def files(name: str, bad: int | None) -> dict[str, list[tuple[int, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"file://{folder}/mlruns")
        mlflow.create_experiment("e", artifact_location="artifacts")
        mlflow.set_experiment("e")
        found = log_run(name, bad)
        (run,) = (path.parent for path in Path(folder).glob("mlruns/*/*/metrics"))
        for part in ("metrics", "params"):
            shutil.copytree(run / part, HERE / name / part, dirs_exist_ok=True)
    return found


if __name__ == "__main__":
    everything = {
        "healthy.db": database("healthy", None),
        "faulty.db": database("faulty", 30),
        "files": files("files", 30),
    }
    (HERE / "expected.json").write_text(json.dumps(everything) + "\n")
