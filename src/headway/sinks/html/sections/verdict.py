"""The first thing on the page: a word, a colour, one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.findings import Finding, Severity
from headway.sinks.coverage import unlocking
from headway.sinks.html.markup import Child, Node, tag
from headway.sinks.html.sections.asked import PageReport
from headway.sinks.html.sections.pieces import prose

LONGEST_VERDICT = 400


def verdict(report: PageReport) -> Node:
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
        told_why = prose(_short(why if isinstance(why, str) and why else root.message))
        said: list[Child] = [tag("strong", f"{root.code} {root.name}"), f"{at}: ", *told_why]
    elif report.coverage.ran * 4 <= report.coverage.of:
        # Silence must not read as health.
        level, word = "warning", "Healthy as far as can be seen"
        said = ["Nothing was found, as far as the few checks that could run can tell."]
    else:
        level, word = "healthy", "Healthy"
        said = ["Nothing was found that would need a change."]
    covered = f"{report.coverage.ran} of {report.coverage.of} checks could run"
    best = unlocking(report.not_run)
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
