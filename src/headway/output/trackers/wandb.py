"""Weights & Biases: rows of history, and findings as alerts.

A run that headway opened gets a row per step. In the user's run only the user decides when a row is
complete: our values join the open row (`commit=False`), with the training step as `headway/step`.
Committing rows would advance the run's step counter, and wandb drops rows with a lower step.
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
        """`own`: headway opened this run and closes it."""
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
        else:  # after a roll back or resume: steps repeat, rows cannot
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
    """Use the given run, the active one, or a new run in the project of that name."""
    if about is not None and not isinstance(about, str):
        return WandbTracker(about, own=False)
    wandb = import_tracker("wandb", extra="wandb")
    if about is None and wandb.run is not None:
        return WandbTracker(wandb.run, own=False)
    # A separate run: `wandb.run` stays the user's.
    run = wandb.init(
        project=about or PROJECT,
        dir=None if run_dir is None else str(run_dir),
        reinit="create_new",
    )
    return WandbTracker(run, own=True)
