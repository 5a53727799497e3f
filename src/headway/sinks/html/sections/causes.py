"""What went wrong, why it is thought so, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from headway.charts.gather import ChartData
from headway.core.findings import Finding, Remedy
from headway.sinks.console import say_where
from headway.sinks.html.markup import Child, Node, tag
from headway.sinks.html.sections.asked import PageReport
from headway.sinks.html.sections.incidents import TOLD_OF_INCIDENT
from headway.sinks.html.sections.pieces import facts_table, folded, jump, prose, section
from headway.sinks.readable import ReadableCause

MOST_CAUSES = 40
ALIKE = 3
"""Causes of one code shown at once; the others are folded."""
MOST_EVIDENCE = 40
MARKS = {"error": "✗", "warning": "!", "info": "i"}


def causes(report: PageReport, data: ChartData) -> Node | None:
    """What went wrong, why it is thought so, and what to do."""
    if not report.causes:
        return None
    shown = report.causes[:MOST_CAUSES]
    articles: list[Child] = []
    for code, group in groupby(shown, key=lambda cause: cause.root.code):
        alike = list(group)
        articles += [_cause(cause, data) for cause in alike[:ALIKE]]
        if rest := alike[ALIKE:]:
            articles.append(folded(f"{len(rest)} more of {code}", [_cause(c, data) for c in rest]))
    if len(report.causes) > MOST_CAUSES:
        articles.append(
            tag("p", f"And {len(report.causes) - MOST_CAUSES} more; `headway diagnose -v`.")
        )
    return section("causes", "Causes", articles)


def _cause(cause: ReadableCause, data: ChartData) -> Node:
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
        tag("p", prose(root.message)),
        _place(root),
        _remedies(root.remedies),
        _evidence(root.evidence),
        _symptoms(cause.symptoms, data),
        class_=f"cause {root.severity}",
    )


def _jump(finding: Finding, data: ChartData) -> Node | None:
    if finding.step is None:
        return None
    return jump(data.place(finding.order, finding.step), finding.step, data)


def _place(finding: Finding) -> Node | None:
    said = say_where(finding.where)
    source = finding.evidence.get("source")
    if not said and not source:
        return None
    code = tag("pre", tag("code", source.strip())) if isinstance(source, str) else None
    where = tag("p", "at ", tag("span", said, class_="mono")) if said else None
    return tag("div", where, code, class_="place")


def _remedies(remedies: Sequence[Remedy]) -> Node | None:
    if not remedies:
        return None
    return tag(
        "div",
        tag("h4", "What to do"),
        tag("ul", [_remedy(item) for item in remedies], class_="remedies"),
    )


def _remedy(remedy: Remedy) -> Node:
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
            "span", prose(remedy.text), tag("span", f" {tried}", class_="tried") if tried else None
        ),
        class_=kind,
    )


def _evidence(evidence: Mapping[str, Any]) -> Node | None:
    rows = [(key, value) for key, value in evidence.items() if key not in TOLD_OF_INCIDENT]
    if not rows:
        return None
    left = len(rows) - MOST_EVIDENCE
    told = [*rows[:MOST_EVIDENCE], *([("…", f"{left} more")] if left > 0 else [])]
    return folded("Evidence", [facts_table(told)])


def _symptoms(symptoms: Sequence[Finding], data: ChartData) -> Node | None:
    if not symptoms:
        return None
    items = [
        tag(
            "li",
            tag("strong", f"{item.code} {item.name} "),
            _jump(item, data),
            " ",
            prose(item.message),
        )
        for item in symptoms[:MOST_CAUSES]
    ]
    return tag("div", tag("h4", "It explains"), tag("ul", items, class_="plain"))
