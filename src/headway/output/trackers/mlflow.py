"""MLflow: metrics, findings as tags and as one text artifact.

Through a client and a run id, never through MLflow's active run: that belongs to the user's thread.
MLflow keeps NaN; its database stores keep an infinity as the largest 64-bit float.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from headway.core.findings import Finding
from headway.output.trackers import base
from headway.output.trackers.base import MetricsRow, import_tracker

ARTIFACT = "headway/findings.txt"
EXPERIMENT = "headway"
MOST_METRICS = 1000
"""Limit of MLflow for one call."""
GATHER_SECONDS = 1.0
_LONGEST_KEY = 250
_LONGEST_TAG = 5000
_FORBIDDEN = re.compile(r"[^\w\-./ ]")


class MlflowTracker:
    """An MLflow run."""

    def __init__(self, client: Any, run_id: str, *, own: bool) -> None:
        self._client = client
        self._run_id = run_id
        self._own = own
        self._metric = import_tracker("mlflow.entities", extra="mlflow").Metric
        self._gathered: list[Any] = []
        self._sent = time.monotonic()
        self._found: list[str] = []
        self._codes: dict[str, int] = {}

    def step(self, row: MetricsRow) -> None:
        now = int(time.time() * 1000)
        self._gathered += [
            self._metric(key_of(name), value, now, row.step) for name, value in row.values.items()
        ]
        due = time.monotonic() - self._sent > GATHER_SECONDS
        if due or len(self._gathered) >= MOST_METRICS:
            self._send()

    def _send(self) -> None:
        """Send many rows at once, which costs little more than one."""
        gathered, self._gathered = self._gathered, []
        for start in range(0, len(gathered), MOST_METRICS):
            part = gathered[start : start + MOST_METRICS]
            self._client.log_batch(self._run_id, metrics=part)
        self._sent = time.monotonic()

    def finding(self, finding: Finding) -> None:
        self._send()
        text = base.finding_text(finding)
        self._found.append(f"{base.finding_title(finding)}\n{text}\n")
        if self._codes.setdefault(finding.code, len(self._found)) == len(self._found):
            tag = f"{base.finding_title(finding)}: {text}"[:_LONGEST_TAG]
            self._client.set_tag(self._run_id, f"headway.{finding.code}", tag)
        self._client.log_text(self._run_id, "\n".join(self._found), ARTIFACT)

    def close(self) -> None:
        self._send()
        if self._own:
            self._client.set_terminated(self._run_id)


def key_of(name: str) -> str:
    """A name that MLflow accepts: `grad_norm#1` is not one."""
    return _FORBIDDEN.sub("_", name)[:_LONGEST_KEY]


def opened(about: Any, run_dir: Path | None) -> MlflowTracker:
    """For a run, its id, or a client; else for the active run, or for one of our own."""
    mlflow = import_tracker("mlflow", extra="mlflow")
    if isinstance(about, str):
        return MlflowTracker(mlflow.MlflowClient(), about, own=False)
    if about is not None and hasattr(about, "info"):
        return MlflowTracker(mlflow.MlflowClient(), about.info.run_id, own=False)
    client = mlflow.MlflowClient() if about is None else about
    active = mlflow.active_run()
    if active is not None:
        return MlflowTracker(client, active.info.run_id, own=False)
    known = client.get_experiment_by_name(EXPERIMENT)
    where = known.experiment_id if known is not None else client.create_experiment(EXPERIMENT)
    name = run_dir.name if run_dir is not None else time.strftime("run-%Y%m%d-%H%M%S")
    run = client.create_run(where, run_name=name)
    return MlflowTracker(client, run.info.run_id, own=True)
