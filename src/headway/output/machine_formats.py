"""Reports for other programs: JSON, GitHub workflow commands and SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway import registry
from headway._version import __version__
from headway.core.findings import Finding, Remedy, Severity
from headway.core.numbers import encode_numbers
from headway.output.display_text import clean
from headway.output.view import ReportView, repeats_text


def render_reports(
    form: str,
    reports: Sequence[tuple[Path, ReportView]],
    *,
    listed: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Reports, each with the path it is about, as `json`, `github` or `sarif`.

    JSON is one object with the keys of `extra` added, or a list with paths where `listed`.
    """
    if form == "github":
        return "\n".join(line for _, report in reports for line in github_commands(report))
    if form == "sarif":
        return json.dumps(sarif_document(reports), indent=2)
    own = dict(encode_numbers(dict(extra or {})))
    items = [
        {**({"path": str(path)} if listed else {}), **report.to_dict(), **own}
        for path, report in reports
    ]
    return json.dumps(items if listed else items[0], indent=2, allow_nan=False, default=str)


# Findings as GitHub workflow commands: they appear beside the code in a pull request.

_GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def github_commands(report: ReportView) -> Iterator[str]:
    """One line for each cause, and one for each symptom at another line."""
    grouped = {id(item) for cause in report.causes for item in (cause.root, *cause.symptoms)}
    for finding in report.findings:
        if id(finding) not in grouped:
            yield _annotation(finding)
    for cause in report.causes:
        root = cause.root
        place = (root.where.file, root.where.line)
        here = [
            item
            for item in cause.symptoms
            if item.where.file is None or (item.where.file, item.where.line) == place
        ]
        codes = ", ".join(dict.fromkeys(item.code for item in here))
        yield _annotation(root, f"; explains {codes}" if codes else "")
        for item in cause.symptoms:
            if item not in here:
                yield _annotation(item)


def _annotation(finding: Finding, also: str = "") -> str:
    where = finding.where
    place: dict[str, str] = {}
    if where.file:
        place["file"] = relative_to_cwd(where.file)
        if where.line:
            place["line"] = str(where.line)
    place["title"] = f"{finding.code} {finding.name}"
    properties = ",".join(f"{key}={_escape_property(value)}" for key, value in place.items())
    step = "" if finding.step is None else f"step {finding.step}: "
    return (
        f"::{_GITHUB_LEVELS[finding.severity]} "
        f"{properties}::{_escape_data(step + clean(message_with_repeats(finding) + also))}"
    )


def message_with_repeats(finding: Finding) -> str:
    """The message, and the steps of a finding that occurred more than once."""
    repeats = repeats_text(finding)
    return f"{finding.message} ({repeats})" if repeats else finding.message


def relative_to_cwd(file: str) -> str:
    """The path as seen from here, where it lies below here: that is how a repository names it."""
    try:
        return Path(file).resolve().relative_to(Path.cwd()).as_posix()
    except (OSError, ValueError):
        return file


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(clean(text)).replace(":", "%3A").replace(",", "%2C")


# Findings as SARIF 2.1.0, the format code-scanning services read.

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif_document(reports: Iterable[tuple[Path, ReportView]]) -> dict[str, Any]:
    """The whole log: one SARIF run for each path that was read."""
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [_run(path, report) for path, report in reports],
    }


def _run(path: Path, report: ReportView) -> dict[str, Any]:
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
        "defaultConfiguration": {"level": _SARIF_LEVELS[check.severity]},
    }


def _result(finding: Finding, rule: int, path: Path) -> dict[str, Any]:
    step = "" if finding.step is None else f"step {finding.step}: "
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _SARIF_LEVELS[finding.severity],
        "message": {"text": step + clean(message_with_repeats(finding))},
        "occurrenceCount": finding.count,
        "locations": [_location(finding, path)],
    }
    fixes = [_sarif_fix(remedy) for remedy in finding.remedies if remedy.edits]
    return {**result, "fixes": fixes} if fixes else result


def _sarif_fix(remedy: Remedy) -> dict[str, Any]:
    changes: dict[str, list[dict[str, Any]]] = {}
    for edit in remedy.edits:
        region = {"charOffset": edit.start, "charLength": edit.end - edit.start}
        replacement = {"deletedRegion": region, "insertedContent": {"text": edit.new}}
        changes.setdefault(_uri(edit.file), []).append(replacement)
    return {
        "description": {"text": clean(remedy.text)},
        "artifactChanges": [
            {"artifactLocation": {"uri": uri}, "replacements": those}
            for uri, those in changes.items()
        ],
    }


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

    relative = Path(relative_to_cwd(file))
    return (
        relative.as_uri()
        if relative.is_absolute()
        else quote(relative.as_posix(), errors="replace")
    )
