"""Reports for other programs: JSON, GitHub workflow commands, SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway import registry
from headway._version import __version__
from headway.config import Settings
from headway.core.findings import Finding, Remedy, Severity, say_line
from headway.core.numbers import encode_numbers
from headway.output.display_text import clean
from headway.output.view import (
    ReportView,
    SuppressedView,
    finding_title,
    format_where,
    repeats_text,
    suppressed_text,
)


def render_reports(
    form: str,
    reports: Sequence[tuple[Path, ReportView]],
    *,
    listed: bool = False,
    extra: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
) -> str:
    """Reports, each with the path it is about, as `json`, `github`, `sarif` or `junit`.

    JSON is one object with the keys of `extra` added, or a list with paths where `listed`.
    `settings`: which checks were selected, and which severity is a failure in JUnit.
    """
    if form == "github":
        return "\n".join(line for _, report in reports for line in github_commands(report))
    if form == "sarif":
        return json.dumps(sarif_document(reports), indent=2)
    if form == "junit":
        unreached = str((extra or {}).get("unreached", ""))
        return junit_document(reports, settings or Settings(), unreached=unreached)
    own = dict(encode_numbers(dict(extra or {})))
    items = [
        {**({"path": str(path)} if listed else {}), **report.to_dict(), **own}
        for path, report in reports
    ]
    return json.dumps(items if listed else items[0], indent=2, allow_nan=False, default=str)


# Findings as GitHub workflow commands: they appear beside the code in a pull request.

_GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def _entries(report: ReportView) -> Iterator[tuple[Finding, str, tuple[Finding, ...]]]:
    """One entry for each cause, and one for each symptom at another line: the finding, what to add
    to its message, and the symptoms that it stands for."""
    grouped = {id(item) for cause in report.causes for item in (cause.root, *cause.symptoms)}
    for finding in report.findings:
        if id(finding) not in grouped:
            yield finding, "", ()
    for cause in report.causes:
        root = cause.root
        place = (root.where.file, root.where.line)
        here = [
            item
            for item in cause.symptoms
            if item.where.file is None or (item.where.file, item.where.line) == place
        ]
        codes = ", ".join(dict.fromkeys(item.code for item in here))
        yield root, f"; explains {codes}" if codes else "", tuple(here)
        for item in cause.symptoms:
            if item not in here:
                yield item, "", ()


def github_commands(report: ReportView) -> Iterator[str]:
    """One line for each entry, and what is suppressed."""
    for finding, also, _ in _entries(report):
        yield _annotation(finding, also)
    for unused in report.unused_suppressions:
        at = {"file": relative_to_cwd(unused.file), "line": str(unused.line)}
        at["title"] = "unused suppression"
        yield f"::notice {_properties(at)}::{_escape_data(clean(unused.why))}"
    if known := suppressed_text(report):
        yield f"::notice title=headway::{_escape_data(known)}"


def _annotation(finding: Finding, also: str = "") -> str:
    where = finding.where
    place: dict[str, str] = {}
    if where.file:
        place["file"] = relative_to_cwd(where.file)
        if where.line:
            place["line"] = str(where.line)
    place["title"] = f"{finding.code} {finding.name}"
    step = "" if finding.step is None else f"step {finding.step}: "
    return (
        f"::{_GITHUB_LEVELS[finding.severity]} "
        f"{_properties(place)}::{_escape_data(step + clean(message_with_repeats(finding) + also))}"
    )


def message_with_repeats(finding: Finding) -> str:
    """The message, and the steps of a finding that occurred more than once."""
    repeats = repeats_text(finding)
    return f"{finding.message} ({repeats})" if repeats else finding.message


def relative_to_cwd(file: str) -> str:
    """The path relative to the working directory if it is below it, as a repository names it."""
    try:
        return Path(file).resolve().relative_to(Path.cwd()).as_posix()
    except (OSError, ValueError):
        return file


def _properties(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={_escape_property(value)}" for key, value in values.items())


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
    hidden = report.suppressed
    entries = [*_entries(report), *((item.finding, "", ()) for item in hidden)]
    codes = sorted({finding.code for finding, *_ in entries})
    results = [_result(item, codes.index(item.code), path, also) for item, also, _ in entries]
    for result, item in zip(results[len(results) - len(hidden) :], hidden, strict=True):
        kind = "inSource" if item.by == "comment" else "external"
        why = {"justification": clean(item.reason)} if item.reason else {}
        result["suppressions"] = [{"kind": kind, **why}]
    return {
        "tool": {
            "driver": {
                "name": "headway",
                "version": __version__,
                "rules": [_rule(code) for code in codes],
            }
        },
        "results": results,
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


def _result(finding: Finding, rule: int, path: Path, also: str) -> dict[str, Any]:
    step = "" if finding.step is None else f"step {finding.step}: "
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _SARIF_LEVELS[finding.severity],
        "message": {"text": step + clean(message_with_repeats(finding) + also)},
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


# JUnit XML, which the test pages of build servers show: one case for each check and each finding.


def junit_document(
    reports: Sequence[tuple[Path, ReportView]], settings: Settings, *, unreached: str = ""
) -> str:
    """One test suite for each report.

    A cause at or above the `fail_on` of the settings is a failure; a check that could not run, a
    suppressed finding and a symptom of a cause are skipped. `unreached`: why no step was made; it
    is an error.
    """
    from xml.etree import ElementTree

    root = ElementTree.Element("testsuites", name="headway")
    for path, report in reports:
        suite = ElementTree.SubElement(root, "testsuite", name=clean(str(path)))
        cases = [
            *(_finding_case(*entry, settings.fail_on) for entry in _entries(report)),
            *_explained_cases(report),
            *(_suppressed_case(item) for item in report.suppressed),
            *_check_cases(report, settings),
        ]
        if unreached:
            cases.append(("headway", "steps", ("error", unreached, ""), {}))
        for family, name, outcome, place in cases:
            head = {"classname": family, "name": clean(name), **place}
            case = ElementTree.SubElement(suite, "testcase", head)
            if outcome is not None:
                kind, message, text = outcome
                inner = ElementTree.SubElement(case, kind)
                if message:
                    inner.set("message", clean(message))
                inner.text = "\n".join(clean(line) for line in text.splitlines()) or None
        counts = {"tests": len(cases)}
        for kind, word in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            counts[word] = sum(
                outcome is not None and outcome[0] == kind for *_, outcome, _ in cases
            )
        for word, count in counts.items():
            suite.set(word, str(count))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


_Case = tuple[str, str, "tuple[str, str, str] | None", dict[str, str]]
"""(family, name, (element, message, text) or None if it passed, file and line)."""


def _explained_cases(report: ReportView) -> Iterator[_Case]:
    """The symptoms that another finding stands for."""
    explained = {less.code: item.code for item, _, here in _entries(report) for less in here}
    for code, by in explained.items():
        name = f"{code} {registry.get(code).name}"
        yield _family(code), name, ("skipped", f"explained by {by}", ""), {}


def _finding_case(
    finding: Finding, also: str, symptoms: tuple[Finding, ...], fail_on: str
) -> _Case:
    place: dict[str, str] = {}
    if finding.where.file:
        place["file"] = relative_to_cwd(finding.where.file)
        if finding.where.line:
            place["line"] = str(finding.where.line)
    step = "" if finding.step is None else f"step {finding.step}: "
    message = step + message_with_repeats(finding) + also
    text = "\n".join([f"{finding.severity}: {message}", format_where(finding.where)])
    text += "".join(f"\n{remedy.text}" for remedy in finding.remedies)
    worst = max(item.severity for item in (finding, *symptoms))
    fails = fail_on != "never" and worst >= Severity.parse(fail_on)
    outcome = ("failure", message, text) if fails else ("system-out", "", text)
    return _family(finding.code), _case_name(finding), outcome, place


def _suppressed_case(item: SuppressedView) -> _Case:
    reason = f": {item.reason}" if item.reason else ""
    outcome = ("skipped", f"suppressed by the {item.by}{reason}", "")
    return _family(item.finding.code), _case_name(item.finding), outcome, {}


def _check_cases(report: ReportView, settings: Settings) -> Iterator[_Case]:
    """The selected checks without findings: those that ran passed, the others were skipped."""
    found = {item.code for item in (*report.findings, *(x.finding for x in report.suppressed))}
    reasons = {item.code: item.reason for item in report.not_run}
    for check in registry.chosen_limits(settings):
        if check.code in found:
            continue
        why = reasons.get(check.code)
        outcome = None if why is None else ("skipped", why, "")
        yield _family(check.code), f"{check.code} {check.name}", outcome, {}


def _case_name(finding: Finding) -> str:
    where = finding.where
    line = f" at {say_line(Path(where.file).name, where.line)}" if where.file and where.line else ""
    return f"{finding_title(finding)}{line}"


def _family(code: str) -> str:
    check = registry.find(code)
    parts = check.__module__.split(".") if check is not None else []
    return f"headway.{parts[-2]}" if parts[:1] == ["headway"] else "headway.plugin"
