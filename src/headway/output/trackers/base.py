"""The `Tracker` protocol, a row of metrics, findings as text, and the import of a tracker's
package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headway.core.findings import Finding, say_line
from headway.errors import import_optional
from headway.output.display_text import clean

# The `Tracker` protocol, a row of metrics, and the import of a tracker's package.


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """The metrics of one step, under the keys that trackers show."""

    step: int
    values: Mapping[str, float]


@runtime_checkable
class Tracker(Protocol):
    """Shows a run. Called from its own thread; may be slow and may raise."""

    def step(self, row: MetricsRow, /) -> None:
        """Log the metrics of a step; steps may repeat after a roll back or resume."""

    def finding(self, finding: Finding, /) -> None:
        """Log a finding."""

    def close(self) -> None:
        """The run has ended. What the user opened stays open."""


def import_tracker(module: str, *, extra: str) -> Any:
    """A tracker's module, or the command that installs it."""
    return import_optional(module, user=f"the tracker {extra!r}", extra=extra)


# A finding as title, plain text and Markdown for trackers.


def finding_title(finding: Finding) -> str:
    """A title for an alert."""
    return clean(f"{finding.code} {finding.name}")


def finding_lines(finding: Finding) -> list[str]:
    """Message, location and remedies, one per line."""
    step = "" if finding.step is None else f"step {finding.step}: "
    lines = [f"{finding.severity}: {step}{finding.message}"]
    where = finding.where
    if where.file is not None:
        inside = f" in {where.function}" if where.function else ""
        lines.append(f"at {say_line(where.file, where.line)}{inside}")
    elif where.module is not None:
        lines.append(f"in {where.module}")
    for remedy in finding.remedies:
        tried = " (tested on the failing step: cured)" if remedy.tested and remedy.cured else ""
        lines.append(f"try: {remedy.text}{tried}")
    return [clean(line) for line in lines]


def finding_text(finding: Finding) -> str:
    """The lines as plain text."""
    return "\n".join(finding_lines(finding))


def finding_markdown(finding: Finding) -> str:
    """The same as Markdown, escaped."""
    head, *rest = (_escaped(line) for line in finding_lines(finding))
    return "\n".join(
        [f"**{_escaped(finding_title(finding))}** {head}", "", *(f"- {line}" for line in rest)]
    )


def _escaped(line: str) -> str:
    marked = "".join(f"\\{mark}" if mark in "\\`*_[]#|" else mark for mark in line)
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
