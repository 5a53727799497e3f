"""The `Tracker` protocol, a row of metrics, and the import of a tracker's package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headway.core.findings import Finding
from headway.errors import FrameworkMissing


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """The numbers of one step, under the keys that trackers show."""

    step: int
    values: Mapping[str, float]


@runtime_checkable
class Tracker(Protocol):
    """Somewhere to show a run. Called from one thread of its own; may be slow, and may raise."""

    def step(self, row: MetricsRow, /) -> None:
        """The numbers of a step; steps may repeat after a roll back or a resume."""

    def finding(self, finding: Finding, /) -> None:
        """Something was found."""

    def close(self) -> None:
        """The run is over. What the user opened stays open, with everything in it."""


def import_tracker(module: str, *, extra: str) -> Any:
    """A tracker's module, or the command that installs it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # installed, but something it needs is not: its own message is the better one
    raise FrameworkMissing(
        f"the tracker {extra!r} needs {package}, which is not installed: "
        f"pip install 'headway[{extra}]'"
    )
