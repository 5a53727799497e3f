"""The text sections of the HTML report: verdict, causes, incidents, events, checkpoints, coverage,
environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from headway.core.findings import Finding, NotRun, Remedy
from headway.core.records import EventRecord
from headway.output.html.markup import (
    Child,
    HtmlNode,
    details,
    facts_table,
    format_value,
    inline_code,
    join,
    section,
    step_button,
    table,
    tag,
)
from headway.output.incident_view import (
    INCIDENT_EVIDENCE,
    MAX_ORIGINS,
    LineView,
    OperandView,
    OriginView,
    SourceLine,
    TrialView,
    read_head,
    read_incident_view,
    read_source_lines,
)
from headway.output.view import (
    CauseView,
    SourcedReportView,
    finding_title,
    format_where,
    group_not_run,
    trial_text,
    verdict_of,
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
    text = format_where(finding.where)
    source = finding.evidence.get("source")
    if not text and not source:
        return None
    code = tag("pre", tag("code", source.strip())) if isinstance(source, str) else None
    where = tag("p", "at ", tag("span", text, class_="mono")) if text else None
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
    trial = trial_text(remedy)
    if not remedy.tested:
        kind, mark = "untested", "→"
    else:
        kind, mark = ("cured", "✓") if remedy.cured else ("failed", "✗")
    return tag(
        "li",
        tag("span", mark, class_="mark", aria_hidden="true"),
        tag(
            "span",
            inline_code(remedy.text),
            tag("span", f" {trial}", class_="tried") if trial else None,
        ),
        class_=kind,
    )


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


# What the guard did, and what else the run inside.


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


# The verdict.

LONGEST_VERDICT = 400


def verdict_section(report: SourcedReportView) -> HtmlNode:
    """The first thing on the page: a word, a colour, one sentence."""
    verdict = verdict_of(report)
    title = verdict.cause
    sentence = shorten_sentence(verdict.sentence)
    text: list[Child] = inline_code(sentence)
    if title and sentence.startswith(title):
        text = [tag("strong", title), *inline_code(sentence[len(title) :])]
    parts = [part for part in (verdict.counts, verdict.coverage) if part]
    level = "warning" if verdict.level in ("unsure", "unknown", "interrupted") else verdict.level
    return tag(
        "section",
        tag("h2", tag("span", verdict.word, class_="word"), class_="verdict-word"),
        tag("p", text, class_="sentence"),
        tag("p", inline_code(" · ".join(parts)), class_="quiet"),
        class_=f"verdict {level}",
        aria_label="Verdict",
    )


def shorten_sentence(sentence: str) -> str:
    """The verdict is read at a glance; the whole text follows below."""
    return sentence if len(sentence) <= LONGEST_VERDICT else f"{sentence[:LONGEST_VERDICT]}…"


# Incidents: bad steps that were re-run.

LONGEST_LINE = 300
OPERAND_COLUMNS = ("tensor", "shape", "dtype", "min", "max", "NaN", "Inf", "zeros")


def incidents_section(
    report: SourcedReportView, data: ChartData, run: Path | None
) -> HtmlNode | None:
    """The steps that were re-run: source line, tensors, cause and tried remedies.

    `run` is the run directory, which contains the source around the line.
    """
    if not data.incidents:
        return None
    # What a finding above already says is not repeated.
    known = {str(item.evidence.get("why")) for item in report.findings}
    articles = []
    for number, event in enumerate(data.incidents):
        lines = [] if run is None else read_source_lines(run, data.incidents, number, read_head)
        articles.append(_incident(event, data, known, lines))
    return section("incidents", "Incidents", articles)


def _incident(
    event: EventRecord, data: ChartData, known: set[str], lines: Sequence[SourceLine]
) -> HtmlNode:
    incident = read_incident_view(event.data)
    repeated = incident.headline in known
    x = data.place((event.segment, event.seq), event.step)
    facts = incident.facts()
    return tag(
        "article",
        tag("h3", step_button(x, event.step, data), " re-run"),
        None if repeated else tag("p", inline_code(incident.headline)),
        _code(lines) if lines else None,
        [
            _origin(origin, known_place=repeated or (at == 0 and bool(lines)))
            for at, origin in enumerate(incident.origins[:MAX_ORIGINS])
        ],
        facts_table(facts) if facts else None,
        None if repeated else _trials(incident.trials),
        class_="cause",
    )


def _code(lines: Sequence[SourceLine]) -> HtmlNode:
    """Source lines, the failing one marked."""
    shown = [
        tag(
            "span",
            tag("span", number, class_="number"),
            code[:LONGEST_LINE],
            class_="line bad" if bad else "line",
        )
        for number, code, bad in lines
    ]
    return tag("pre", tag("code", shown), class_="context", tabindex="0")


def _origin(origin: OriginView, *, known_place: bool) -> HtmlNode:
    return tag(
        "div",
        None if known_place else _line(origin.place),
        _line(origin.called_from),
        tag("p", origin.where, class_="quiet"),
        _operands(origin.operands) if origin.operands else None,
        class_="place",
    )


def _line(place: LineView | None) -> HtmlNode | None:
    if place is None:
        return None
    code = None
    if place.source:
        number = tag("span", place.line, class_="number")
        code = tag("pre", tag("code", number, " ", place.source))
    return join(tag("p", "at ", tag("span", place.at, class_="mono")), code)


def operand_row(item: OperandView) -> list[str]:
    """The cells under `OPERAND_COLUMNS`."""
    numbers = (item.low, item.high, item.nan, item.inf, item.zero)
    return [item.name, item.shape, item.dtype, *map(format_value, numbers)]


def _operands(items: Sequence[OperandView]) -> HtmlNode:
    rows = [operand_row(item) for item in items]
    return table("Tensors of the op", OPERAND_COLUMNS, rows, numbers=(3, 4, 5, 6, 7))


def _trials(trials: Sequence[TrialView]) -> HtmlNode | None:
    if not trials:
        return None
    items = [
        tag(
            "li",
            tag("span", trial.mark, class_="mark", aria_hidden="true"),
            tag(
                "span",
                inline_code(trial.text),
                tag("span", f" {trial.outcome}", class_="tried"),
                tag("span", f" ({trial.why})", class_="quiet") if trial.why else None,
            ),
            class_={"cured": "cured", "not cured": "failed"}.get(trial.outcome),
        )
        for trial in trials
    ]
    return tag("div", tag("h4", "Tried on this step"), tag("ul", items, class_="remedies"))
