"""trackio: rows, and findings as alerts. NaN and infinities are kept."""

from __future__ import annotations

import contextvars
from functools import partial
from pathlib import Path
from typing import Any

from headway.core.findings import Finding, Severity
from headway.output.trackers import base
from headway.output.trackers.base import MetricsRow, import_tracker

PROJECT = "headway"
_LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.ERROR: "ERROR"}


class TrackioTracker:
    """A run, ours or the user's."""

    def __init__(self, run: Any, *, own: bool) -> None:
        self._run = run
        self._own = own
        self._levels = getattr(import_tracker("trackio", extra="trackio"), "AlertLevel", None)

    def step(self, row: MetricsRow) -> None:
        self._run.log(dict(row.values), step=row.step)

    def finding(self, finding: Finding) -> None:
        if self._levels is None or not hasattr(self._run, "alert"):  # before trackio had alerts
            self._run.log({"headway/finding": base.finding_text(finding)}, step=finding.step)
            return
        self._run.alert(
            title=base.finding_title(finding),
            text=base.finding_text(finding),
            level=self._levels[_LEVELS[finding.severity]],
            step=finding.step,
        )

    def close(self) -> None:
        if self._own:
            self._run.finish()


def opened(about: Any, run_dir: Path | None) -> TrackioTracker:
    """Use the given run, the active one, or a new run in the project of that name."""
    trackio = import_tracker("trackio", extra="trackio")
    if about is not None and not isinstance(about, str):
        return TrackioTracker(about, own=False)
    active = import_tracker("trackio.context_vars", extra="trackio").current_run.get()
    if about is None and active is not None:
        return TrackioTracker(active, own=False)
    # In a separate context, so that trackio sees no active run in the user's.
    begin = partial(trackio.init, project=about or PROJECT, embed=False)
    return TrackioTracker(contextvars.copy_context().run(begin), own=True)
