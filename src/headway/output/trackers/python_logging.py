"""Python's own `logging`: a line per step at INFO, findings at their severity."""

from __future__ import annotations

import logging
from pathlib import Path

from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.output.trackers import base
from headway.output.trackers.base import MetricsRow

LOGGER = "headway.steps"
_TOO_MANY = "grad_layer/"
_LEVELS = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}


class LoggingTracker:
    """Writes to a logger. Each line carries its numbers as `record.headway`, whole."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        # The guard itself logs warnings and errors to `headway`.
        self._has_warnings = logger.name.partition(".")[0] == "headway"

    def step(self, row: MetricsRow) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            shown = [
                f"{key}={say(value, 6)}"
                for key, value in row.values.items()
                if not key.startswith(_TOO_MANY)
            ]
            numbers = {"step": row.step, **row.values}
            self._logger.info("step %d: %s", row.step, " ".join(shown), extra={"headway": numbers})

    def finding(self, finding: Finding) -> None:
        if self._has_warnings and finding.severity >= Severity.WARNING:
            return
        text = "; ".join(base.finding_lines(finding))
        data = finding.to_dict()
        level = _LEVELS[finding.severity]
        self._logger.log(
            level, "%s: %s", base.finding_title(finding), text, extra={"headway": data}
        )

    def close(self) -> None:
        for handler in self._logger.handlers:
            handler.flush()


def opened(about: logging.Logger | str | None, run_dir: Path | None) -> LoggingTracker:
    """For a logger, a logger's name, or `headway.steps`."""
    if isinstance(about, logging.Logger):
        return LoggingTracker(about)
    return LoggingTracker(logging.getLogger(about or LOGGER))
