"""What a sink needs to know of a report, so that it need not know where reports are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headway.core.findings import Finding, NotRun


class ReadableCoverage(Protocol):
    """How much could be looked at."""

    @property
    def ran(self) -> int: ...
    @property
    def of(self) -> int: ...


class ReadableCause(Protocol):
    """A finding that nothing else explains, with those it explains."""

    @property
    def root(self) -> Finding: ...
    @property
    def symptoms(self) -> Sequence[Finding]: ...


class ReadableReport(Protocol):
    """What was found, what caused it, what could not be looked at."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def causes(self) -> Sequence[ReadableCause]: ...
    @property
    def not_run(self) -> Sequence[NotRun]: ...
    @property
    def coverage(self) -> ReadableCoverage: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def to_dict(self) -> dict[str, Any]: ...
