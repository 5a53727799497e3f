"""Weights & Biases: rows of history, and findings as alerts.

A run of ours gets a row per step. In a run of the user's, only the user decides when a row is
complete and what its number is: our values go along with the row that is open (`commit=False`),
with the run's step as `headway/step`. Rows of our own would move the run's counter on, and wandb
drops what comes with a number that is behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.core.findings import Finding, Severity
from headway.output.trackers import base
from headway.output.trackers.base import MetricsRow, import_tracker

STEP = "headway/step"
PROJECT = "headway"
_LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.ERROR: "ERROR"}
_OURS = ("grad/*", "grad_layer/*", "memory/*", "headway/*")


class WandbTracker:
    """A run, ours or the user's."""

    def __init__(self, run: Any, *, own: bool) -> None:
        """`own`: nobody else logs to this run, and it ends with the guard's."""
        self._run = run
        self._own = own
        self._last = -1
        if not own:
            run.define_metric(STEP, hidden=True)
            for pattern in _OURS:
                run.define_metric(pattern, step_metric=STEP)

    def step(self, row: MetricsRow) -> None:
        values = {**row.values, STEP: row.step}
        if not self._own:
            self._run.log(values, commit=False)
        elif row.step > self._last:
            self._last = row.step
            self._run.log(values, step=row.step)
        else:  # after a roll back or a resume: steps repeat, rows cannot
            self._last += 1
            self._run.log(values, step=self._last)

    def finding(self, finding: Finding) -> None:
        self._run.alert(
            title=base.finding_title(finding),
            text=base.finding_text(finding),
            level=_LEVELS[finding.severity],
        )

    def close(self) -> None:
        if self._own:
            self._run.finish()


def opened(about: Any, run_dir: Path | None) -> WandbTracker:
    """For a run, for the one that is active, or for one of our own in a project of that name."""
    if about is not None and not isinstance(about, str):
        return WandbTracker(about, own=False)
    wandb = import_tracker("wandb", extra="wandb")
    if about is None and wandb.run is not None:
        return WandbTracker(wandb.run, own=False)
    # Beside whatever run the user may still begin: `wandb.run` stays theirs.
    run = wandb.init(
        project=about or PROJECT,
        dir=None if run_dir is None else str(run_dir),
        reinit="create_new",
    )
    return WandbTracker(run, own=True)
