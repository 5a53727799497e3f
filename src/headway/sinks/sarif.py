"""Findings as SARIF 2.1.0, the format code-scanning services read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway import registry
from headway._version import __version__
from headway.core.findings import Finding, Severity
from headway.sinks.github import near
from headway.sinks.plain import clean
from headway.sinks.readable import ReadableReport

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def document(reports: Iterable[tuple[Path, ReadableReport]]) -> dict[str, Any]:
    """The whole log: one SARIF run for each path that was read."""
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [_run(path, report) for path, report in reports],
    }


def _run(path: Path, report: ReadableReport) -> dict[str, Any]:
    codes = sorted({finding.code for finding in report.findings})
    return {
        "tool": {
            "driver": {
                "name": "headway",
                "version": __version__,
                "rules": [_rule(code) for code in codes],
            }
        },
        "results": [_result(item, codes.index(item.code), path) for item in report.findings],
    }


def _rule(code: str) -> dict[str, Any]:
    check = registry.get(code)
    return {
        "id": check.code,
        "name": check.name,
        "shortDescription": {"text": check.summary},
        "help": {"text": f"headway explain {check.code}"},
        "defaultConfiguration": {"level": _LEVELS[check.severity]},
    }


def _result(finding: Finding, rule: int, path: Path) -> dict[str, Any]:
    step = "" if finding.step is None else f"step {finding.step}: "
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": step + clean(finding.message)},
        "locations": [_location(finding, path)],
    }
    return result


def _location(finding: Finding, path: Path) -> dict[str, Any]:
    where = finding.where
    # A result must be somewhere; one without a line of code is in the run itself.
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(where.file or str(_file_of(path)))}}
    if where.file and where.line:
        place["region"] = {"startLine": where.line}
    location: dict[str, Any] = {"physicalLocation": place}
    if where.module:
        location["logicalLocations"] = [{"fullyQualifiedName": clean(where.module)}]
    return location


def _file_of(path: Path) -> Path:
    header = path / "run.json"
    return header if header.is_file() else path


def _uri(file: str) -> str:
    from urllib.parse import quote

    relative = Path(near(file))
    return (
        relative.as_uri()
        if relative.is_absolute()
        else quote(relative.as_posix(), errors="replace")
    )
