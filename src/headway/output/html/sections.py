"""The text sections of the HTML report: causes, events, checkpoints, coverage, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from headway.core.findings import Finding, NotRun
from headway.output.html.chart_json import finding_key
from headway.output.html.incident_sections import incident_id, remedy_list
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
from headway.output.incident_view import INCIDENT_EVIDENCE
from headway.output.run_story import find_incident
from headway.output.view import (
    CauseView,
    SourcedReportView,
    finding_title,
    format_where,
    group_not_run,
)
from headway.rundir.chart_data import ChartData

# Causes.

MAX_CAUSES = 40
MAX_SAME_CAUSES = 3
"""Causes of one code that are shown at once; the others are folded."""
MAX_EVIDENCE = 40
MARKS = {"error": "✗", "warning": "!", "info": "i"}


def causes_section(report: SourcedReportView, data: ChartData) -> HtmlNode | None:
    """The causes with their evidence, symptoms and remedies."""
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
            tag("p", f"{len(report.causes) - MAX_CAUSES} more; see `headway diagnose -v`.")
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
            f" {finding_title(root)} ",
            _jump(root, data),
        ),
        tag("p", inline_code(root.message)),
        _place(root),
        _incident_link(root, data),
        remedy_list(root.remedies),
        _evidence(root.evidence),
        _symptoms(cause.symptoms, data),
        class_=f"cause {root.severity}",
        id=finding_key(root),
        tabindex="-1",
    )


def _jump(finding: Finding, data: ChartData) -> HtmlNode | None:
    if finding.step is None:
        return None
    return step_button(data.place(finding.order, finding.step), finding.step, data)


def _place(finding: Finding) -> HtmlNode | None:
    text = format_where(finding.where, message=finding.message)
    source = finding.evidence.get("source")
    if not text and not source:
        return None
    code = tag("pre", tag("code", source.strip())) if isinstance(source, str) else None
    where = tag("p", "at ", tag("span", text, class_="mono")) if text else None
    return tag("div", where, code, class_="place")


def _incident_link(finding: Finding, data: ChartData) -> HtmlNode | None:
    number = find_incident(finding, data.incidents)
    if number is None:
        return None
    return tag("p", tag("a", "Show the incident", href=f"#{incident_id(number)}"))


def _evidence(evidence: Mapping[str, Any]) -> HtmlNode | None:
    rows = [(key, value) for key, value in evidence.items() if key not in INCIDENT_EVIDENCE]
    if not rows:
        return None
    left = len(rows) - MAX_EVIDENCE
    shown = [*rows[:MAX_EVIDENCE], *([("…", f"{left} more")] if left > 0 else [])]
    return details("Evidence", [facts_table(shown)])


def _symptoms(symptoms: Sequence[Finding], data: ChartData) -> HtmlNode | None:
    if not symptoms:
        return None
    items = [
        tag(
            "li",
            tag("strong", f"{finding_title(item)} "),
            _jump(item, data),
            " ",
            inline_code(item.message),
        )
        for item in symptoms[:MAX_CAUSES]
    ]
    return tag("div", tag("h4", "Explains"), tag("ul", items, class_="plain"))


# Checkpoints.

MAX_CHECKPOINTS = 300


def checkpoints_section(report: SourcedReportView) -> HtmlNode | None:
    """The checkpoints that were scanned."""
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
        tag("p", f"The last {MAX_CHECKPOINTS} checkpoints; {more} older ones are not shown.")
        if more > 0
        else None
    )
    return section("checkpoints", "Checkpoints", [shown, note])


# Coverage.


def coverage_section(not_run: Sequence[NotRun], ran: int, of: int) -> HtmlNode:
    """How many checks ran, and why the others did not."""
    inside: list[Child] = [tag("p", f"{ran} of {of} checks could run on this source.")]
    if not_run:
        rows = [[reason, ", ".join(codes)] for reason, codes in group_not_run(not_run)]
        shown = table("Checks that did not run", ("reason", "checks"), rows)
        inside.append(details(f"{len(not_run)} checks did not run", [shown]))
    return section("coverage", "Coverage", inside)


# Environment.

MAX_FACTS = 200


def environment_section(report: SourcedReportView, data: ChartData) -> HtmlNode:
    """Facts from the run, and the files that were read."""
    inside: list[Child] = []
    facts = [(key, value) for key, value in data.facts.items() if value not in (None, {}, [])]
    if facts:
        inside.append(facts_table(facts[:MAX_FACTS]))
    read = [item for item in report.sources if "clean" not in item]
    if read:
        rows = [
            [str(item.get("path")), format_value(item.get("format")), _used(item)]
            for item in read[:100]
        ]
        inside.append(table("Files that were read", ("file", "format", "lines used"), rows))
    if report.notes:
        inside.append(tag("ul", [tag("li", note) for note in report.notes], class_="plain"))
    if not inside:
        inside.append(tag("p", "The run recorded no environment.", class_="quiet"))
    return section("environment", "Environment and settings", inside)


def _used(item: Mapping[str, Any]) -> str:
    return f"{format_value(item.get('used'))} of {format_value(item.get('lines'))}"


def events_section(data: ChartData) -> HtmlNode | None:
    """What the guard did, and other events of the run."""
    if not data.marks:
        return None
    items = [
        tag("li", step_button(mark.x, mark.step, data), f" {mark.label}") for mark in data.marks
    ]
    if data.marks_left_out:
        items.append(tag("li", f"{data.marks_left_out} events in between are not listed"))
    count = len(data.marks) + data.marks_left_out
    listed = tag("ul", items, class_="plain")
    return details(f"Events ({count})", [listed], open_=count <= 8)
