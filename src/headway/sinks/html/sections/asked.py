"""What the page needs of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headway.sinks.readable import ReadableReport


class PageReport(ReadableReport, Protocol):
    """What the page needs of a report."""

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]: ...
