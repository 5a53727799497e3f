"""The text sections of the HTML report: verdict, causes, events, checkpoints, coverage,
environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from headway.core.findings import Finding, NotRun, Remedy, Severity
from headway.output.html.incident_section import INCIDENT_EVIDENCE
from headway.output.html.markup import (
    Child,
    HtmlNode,
    details,
    facts_table,
    format_value,
    inline_code,
    section,
    step_button,
    table,
    tag,
)
from headway.output.view import CauseView, SourcedReportView, find_missing_signal, format_where
from headway.rundir.chart_data import ChartData

# What went wrong, why it is thought so, and what to do.

MAX_CAUSES = 40
MAX_SAME_CAUSES = 3
"""Causes of one code shown at once; the others are folded."""
MAX_EVIDENCE = 40
MARKS = {"error": "✗", "warning": "!", "info": "i"}


def causes_section(report: SourcedReportView, data: ChartData) -> HtmlNode | None:
    """What went wrong, why it is thought so, and what to do."""
    if not report.causes:
        return None
    shown = report.causes[:MAX_CAUSES]
    articles: list[Child] = []
    for code, group in groupby(shown, key=lambda cause: cause.root.code):
        alike = list(group)
        articles += [_cause(cause, data) for cause in alike[:MAX_SAME_CAUSES]]
        if rest := alike[MAX_SAME_CAUSES:]:
            articles.append(details(f"{len(rest)} more of {code}", [_cause(c, data) for c in rest]))
    if len(report.causes) > MAX_CAUSES:
        articles.append(
            tag("p", f"And {len(report.causes) - MAX_CAUSES} more; `headway diagnose -v`.")
        )
    return section("causes", "Causes", articles)


def _cause(cause: CauseView, data: ChartData) -> HtmlNode:
    root = cause.root
    return tag(
        "article",
        tag(
            "h3",
            tag(
                "span",
                tag("span", MARKS[str(root.severity)], aria_hidden="true"),
                f" {root.severity}",
                class_=f"badge {root.severity}",
            ),
            f" {root.code} {root.name} ",
            _jump(root, data),
        ),
        tag("p", inline_code(root.message)),
        _place(root),
        _remedies(root.remedies),
        _evidence(root.evidence),
        _symptoms(cause.symptoms, data),
        class_=f"cause {root.severity}",
    )


def _jump(finding: Finding, data: ChartData) -> HtmlNode | None:
    if finding.step is None:
        return None
    return step_button(data.place(finding.order, finding.step), finding.step, data)


def _place(finding: Finding) -> HtmlNode | None:
    said = format_where(finding.where)
    source = finding.evidence.get("source")
    if not said and not source:
        return None
    code = tag("pre", tag("code", source.strip())) if isinstance(source, str) else None
    where = tag("p", "at ", tag("span", said, class_="mono")) if said else None
    return tag("div", where, code, class_="place")


def _remedies(remedies: Sequence[Remedy]) -> HtmlNode | None:
    if not remedies:
        return None
    return tag(
        "div",
        tag("h4", "What to do"),
        tag("ul", [_remedy(item) for item in remedies], class_="remedies"),
    )


def _remedy(remedy: Remedy) -> HtmlNode:
    if not remedy.tested:
        kind, mark, tried = "untested", "→", None
    elif remedy.cured:
        kind, mark, tried = "cured", "✓", "tested on the failing step: cured"
    else:
        kind, mark, tried = "failed", "✗", "tested on the failing step: did not help"
    return tag(
        "li",
        tag("span", mark, class_="mark", aria_hidden="true"),
        tag(
            "span",
            inline_code(remedy.text),
            tag("span", f" {tried}", class_="tried") if tried else None,
        ),
        class_=kind,
    )


def _evidence(evidence: Mapping[str, Any]) -> HtmlNode | None:
    rows = [(key, value) for key, value in evidence.items() if key not in INCIDENT_EVIDENCE]
    if not rows:
        return None
    left = len(rows) - MAX_EVIDENCE
    told = [*rows[:MAX_EVIDENCE], *([("…", f"{left} more")] if left > 0 else [])]
    return details("Evidence", [facts_table(told)])


def _symptoms(symptoms: Sequence[Finding], data: ChartData) -> HtmlNode | None:
    if not symptoms:
        return None
    items = [
        tag(
            "li",
            tag("strong", f"{item.code} {item.name} "),
            _jump(item, data),
            " ",
            inline_code(item.message),
        )
        for item in symptoms[:MAX_CAUSES]
    ]
    return tag("div", tag("h4", "It explains"), tag("ul", items, class_="plain"))


# The saved states that were looked through.

MAX_CHECKPOINTS = 300


def checkpoints_section(report: SourcedReportView) -> HtmlNode | None:
    """The saved states that were looked through."""
    saved = [item for item in report.sources if "clean" in item]
    if not saved:
        return None
    rows = [
        [
            format_value(item.get("step")),
            format_value(item.get("tensors")),
            format_value(item.get("bytes"), "bytes"),
            format_value(item.get("nonfinite")),
            "✓ clean" if item.get("clean") else "✗ not clean",
            str(item.get("path")),
        ]
        for item in saved[-MAX_CHECKPOINTS:]
    ]
    head = ("step", "tensors", "size", "NaN or Inf", "state", "checkpoint")
    shown = table("Checkpoints", head, rows, numbers=(0, 1, 2, 3))
    more = len(saved) - MAX_CHECKPOINTS
    note = (
        tag("p", f"The last {MAX_CHECKPOINTS}; {more} older are not shown.") if more > 0 else None
    )
    return section("checkpoints", "Checkpoints", [shown, note])


# What was looked at, and why the rest was not.


def coverage_section(not_run: Sequence[NotRun], ran: int, of: int) -> HtmlNode:
    """What was looked at, and why the rest was not."""
    told: list[Child] = [tag("p", f"{ran} of {of} checks could run on this source.")]
    if not_run:
        by_reason: dict[str, list[str]] = {}
        for item in not_run:
            by_reason.setdefault(item.reason, []).append(item.code)
        ranked = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
        rows = [[reason, ", ".join(codes)] for reason, codes in ranked]
        shown = table("Checks that were not run", ("why", "checks"), rows)
        told.append(details(f"Not run: {len(not_run)}, and why", [shown]))
    return section("coverage", "Coverage", told)


# What the run said of itself, and what was read.

MAX_FACTS = 200


def environment_section(report: SourcedReportView, data: ChartData) -> HtmlNode:
    """What the run said of itself, and what was read."""
    told: list[Child] = []
    facts = [(key, value) for key, value in data.facts.items() if value not in (None, {}, [])]
    if facts:
        told.append(facts_table(facts[:MAX_FACTS]))
    read = [item for item in report.sources if "clean" not in item]
    if read:
        rows = [
            [str(item.get("path")), format_value(item.get("format")), _used(item)]
            for item in read[:100]
        ]
        told.append(table("What was read", ("file", "read as", "lines used"), rows))
    if report.notes:
        told.append(tag("ul", [tag("li", note) for note in report.notes], class_="plain"))
    if not told:
        told.append(tag("p", "Nothing is known of it.", class_="quiet"))
    return section("environment", "Environment and settings", told)


def _used(item: Mapping[str, Any]) -> str:
    return f"{format_value(item.get('used'))} of {format_value(item.get('lines'))}"


# What the guard did, and what else the run told.


def events_section(data: ChartData) -> HtmlNode | None:
    """What the guard did, and what else the run told."""
    if not data.marks:
        return None
    items = [
        tag("li", step_button(mark.x, mark.step, data), f" {mark.label}") for mark in data.marks
    ]
    if data.marks_left_out:
        items.append(tag("li", f"and {data.marks_left_out} between them that are not listed"))
    count = len(data.marks) + data.marks_left_out
    listed = tag("ul", items, class_="plain")
    return details(f"What happened on the way ({count})", [listed], open_=count <= 8)


# The first thing on the page: a word, a colour, one sentence.

LONGEST_VERDICT = 400


def verdict_section(report: SourcedReportView) -> HtmlNode:
    """The first thing on the page: a word, a colour, one sentence."""
    errors = _count(report.findings, Severity.ERROR)
    warnings = _count(report.findings, Severity.WARNING)
    told = ", ".join(
        f"{n} {word}" + ("" if n == 1 else "s")
        for n, word in ((errors, "error"), (warnings, "warning"))
        if n
    )
    if errors or warnings:
        level, word = ("error", "Error") if errors else ("warning", "Warning")
        root = report.causes[0].root if report.causes else report.findings[0]
        at = "" if root.step is None else f" at step {root.step}"
        # The reason, where a replay has found it, says more than the symptom.
        why = root.evidence.get("why")
        told_why = inline_code(_short(why if isinstance(why, str) and why else root.message))
        said: list[Child] = [tag("strong", f"{root.code} {root.name}"), f"{at}: ", *told_why]
    elif report.coverage.ran * 4 <= report.coverage.of:
        # Silence must not read as health.
        level, word = "warning", "Healthy as far as can be seen"
        said = ["Nothing was found, as far as the few checks that could run can tell."]
    else:
        level, word = "healthy", "Healthy"
        said = ["Nothing was found that would need a change."]
    covered = f"{report.coverage.ran} of {report.coverage.of} checks could run"
    best = find_missing_signal(report.not_run)
    more = "" if best is None else f"; log {best[0]} to unlock {best[1]} more"
    line = f"{told} · {covered}{more}" if told else f"{covered}{more}"
    return tag(
        "section",
        tag("h2", tag("span", word, class_="word"), class_="verdict-word"),
        tag("p", said, class_="sentence"),
        tag("p", line, class_="quiet"),
        class_=f"verdict {level}",
        aria_label="Verdict",
    )


def _short(sentence: str) -> str:
    """The first thing on the page is read in one go; all of it stands below."""
    return sentence if len(sentence) <= LONGEST_VERDICT else f"{sentence[:LONGEST_VERDICT]}…"


def _count(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(item.severity == severity for item in findings)
