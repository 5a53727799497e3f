"""Findings as GitHub workflow commands: they appear beside the code in a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headway.core.findings import Finding, Severity
from headway.sinks.plain import clean
from headway.sinks.readable import ReadableReport

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def commands(report: ReadableReport) -> Iterator[str]:
    """One line for each finding."""
    for finding in report.findings:
        yield _annotation(finding)


def _annotation(finding: Finding) -> str:
    where = finding.where
    place: dict[str, str] = {}
    if where.file:
        place["file"] = near(where.file)
        if where.line:
            place["line"] = str(where.line)
    place["title"] = f"{finding.code} {finding.name}"
    properties = ",".join(f"{key}={_property(value)}" for key, value in place.items())
    step = "" if finding.step is None else f"step {finding.step}: "
    return f"::{_LEVELS[finding.severity]} {properties}::{_data(step + clean(finding.message))}"


def near(file: str) -> str:
    """The path as seen from here, where it lies below here: that is how a repository names it."""
    try:
        return Path(file).resolve().relative_to(Path.cwd()).as_posix()
    except (OSError, ValueError):
        return file


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(clean(text)).replace(":", "%3A").replace(",", "%2C")
