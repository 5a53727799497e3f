"""The parts of the page that are words: verdict, causes, incidents, tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from holdfast.charts.gather import ChartData
from holdfast.core.findings import Finding, NotRun, Remedy, Severity
from holdfast.core.numbers import encode_numbers, say, say_bytes
from holdfast.core.records import EventRecord
from holdfast.sinks.console import say_where
from holdfast.sinks.coverage import unlocking
from holdfast.sinks.html.around import Line, around, beginning
from holdfast.sinks.html.markup import Child, Node, join, tag
from holdfast.sinks.readable import ReadableCause, ReadableReport

MOST_CAUSES = 40
LONGEST_VERDICT = 400
ALIKE = 3
"""Causes of one code shown at once; the others are folded."""
MOST_EVIDENCE = 40
LONGEST_LINE = 300
MOST_CHECKPOINTS = 300
MOST_FACTS = 200
MARKS = {"error": "✗", "warning": "!", "info": "i"}
TOLD_OF_INCIDENT = ("why", "source", "nature", "guilt", "samples", "data_set", "reached", "phase")
"""Evidence that has a place of its own on the page."""
ABOUT_INCIDENT = {
    "nature": "when it is run again",
    "guilt": "it lies in",
    "rank": "rank",
    "notes": "notes",
}
"""What else is told of a step that was run again, and under what words."""
SAID_OF_INCIDENT = {
    "deterministic": "it happens each time",
    "transient": "it does not happen",
    "compiler": "only when compiled",
    "batch": "the batch",
    "weights": "the weights",
    "together": "batch and weights together",
}


class PageReport(ReadableReport, Protocol):
    """What the page needs of a report."""

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]: ...


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
            articles.append(_folded(f"{len(rest)} more of {code}", [_cause(c, data) for c in rest]))
    if len(report.causes) > MOST_CAUSES:
        articles.append(
            tag("p", f"And {len(report.causes) - MOST_CAUSES} more; `holdfast diagnose -v`.")
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


def jump(x: int, step: int, data: ChartData) -> Node:
    """A step; where there are charts, a button that takes them there."""
    said = f"step {step}"
    if not data.series:
        return tag("span", said, class_="step")
    return tag("button", said, type="button", class_="jump", data_x=x)


def prose(words: str) -> list[Child]:
    """A sentence; what stands between backticks is code."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # one of them is alone
        return [words]
    return [tag("code", part) if at % 2 else part for at, part in enumerate(parts)]


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
    return _folded("Evidence", [facts_table(told)])


def facts_table(rows: Sequence[tuple[str, Any]]) -> Node:
    """Names and values."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", _words(key)), tag("dd", said(value, str(key))))
            for key, value in rows
        ],
        class_="facts",
    )


def _words(key: object) -> str:
    return str(key).replace("_", " ")


def said(value: Any, key: str = "") -> str:
    """A value for a reader, whatever it is."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, (int, float)):
        if key.endswith("bytes") and abs(value) < 1e300:
            return say_bytes(value)
        if isinstance(value, int):
            return str(value) if abs(value) < 10**15 else f"about 10^{math.log10(abs(value)):.0f}"
        return say(value, 6)
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(name)}: {said(item)}" for name, item in [*value.items()][:20])
    if isinstance(value, (list, tuple)):
        more = f" and {len(value) - 20} more" if len(value) > 20 else ""
        return ", ".join(said(item) for item in value[:20]) + more
    return str(encode_numbers(value))


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


def incidents(report: PageReport, data: ChartData, run: Path | None) -> Node | None:
    """The steps that were run again: the line, the numbers that met there, what was tried.

    `run` is the run directory: the lines around are kept there.
    """
    if not data.incidents:
        return None
    # What a finding above says already need not be said again.
    known = {str(item.evidence.get("why")) for item in report.findings}
    told = []
    for number, event in enumerate(data.incidents):
        lines = [] if run is None else around(run, data.incidents, number, beginning)
        told.append(_incident(event, data, known, lines))
    return section("incidents", "Incidents", told)


def _incident(event: EventRecord, data: ChartData, known: set[str], lines: Sequence[Line]) -> Node:
    told = event.data
    headline = str(told.get("headline") or "What happened could not be found out.")
    x = data.place((event.segment, event.seq), event.step)
    births = [item for item in _list(told.get("births")) if isinstance(item, Mapping)]
    rows = _list(births[0].get("rows")) if births else []
    samples = _list(told.get("samples"))
    about: list[tuple[str, Any]] = []
    if rows:
        about.append(("samples of the batch", rows))
    if samples:
        about.append(("in the data set", samples))
    about += [
        (said_of, SAID_OF_INCIDENT.get(str(told[key]), told[key]))
        for key, said_of in ABOUT_INCIDENT.items()
        if told.get(key) not in (None, "unknown", [], ())
    ]
    return tag(
        "article",
        tag("h3", jump(x, event.step, data), " run again with instruments"),
        None if headline in known else tag("p", prose(headline)),
        _code(lines) if lines else None,
        [
            _birth(birth, told_above=headline in known or (at == 0 and bool(lines)))
            for at, birth in enumerate(births[:3])
        ],
        facts_table(about) if about else None,
        None if headline in known else _trials(_list(told.get("trials"))),
        class_="cause",
    )


def _code(lines: Sequence[Line]) -> Node:
    """A stretch of the user's code, the bad line marked."""
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


def _birth(birth: Mapping[str, Any], *, told_above: bool) -> Node:
    inputs = [item for item in _list(birth.get("inputs")) if isinstance(item, Mapping)]
    output = birth.get("output")
    if isinstance(output, Mapping):
        inputs = [*inputs[:10], output]
    where = f"op {birth.get('op')}, {birth.get('phase')} pass"
    if birth.get("module"):
        where += f", module {birth.get('module')}"
    return tag(
        "div",
        None if told_above else _line(birth.get("place")),
        _line(birth.get("called_from")),
        tag("p", where, class_="quiet"),
        _operands(inputs) if inputs else None,
        class_="place",
    )


def _line(place: Any) -> Node | None:
    """A line of code as the incident recorded it: no file is opened that a log names."""
    if not isinstance(place, Mapping) or not place.get("file"):
        return None
    function = place.get("function")
    within = f" in {function}" if function and function != "<module>" else ""
    source = place.get("source")
    code = None
    if isinstance(source, str) and source.strip():
        number = tag("span", str(place.get("line")), class_="number")
        code = tag("pre", tag("code", number, " ", source.strip()))
    return join(
        tag("p", "at ", tag("span", f"{place['file']}:{place.get('line')}{within}", class_="mono")),
        code,
    )


def _operands(items: Sequence[Mapping[str, Any]]) -> Node:
    head = ("tensor", "shape", "type", "lowest", "highest", "NaN", "Inf", "zero")
    return _table(
        "Tensors of the op",
        head,
        [
            [
                f"{item.get('name')}",
                "×".join(str(size) for size in _list(item.get("shape"))) or "scalar",
                said(item.get("dtype")),
                said(item.get("low")),
                said(item.get("high")),
                *(said(item.get(kind, 0)) for kind in ("nan", "inf", "zero")),
            ]
            for item in items
        ],
        numbers=(3, 4, 5, 6, 7),
    )


def _trials(trials: Sequence[Any]) -> Node | None:
    known = [item for item in trials if isinstance(item, Mapping) and item.get("text")]
    if not known:
        return None
    marks = {"cured": "✓", "not cured": "✗"}
    items = [
        tag(
            "li",
            tag("span", marks.get(str(item.get("tried")), "·"), class_="mark", aria_hidden="true"),
            tag(
                "span",
                prose(str(item["text"])),
                tag("span", f" {item.get('tried')}", class_="tried"),
                tag("span", f" ({item['why']})", class_="quiet") if item.get("why") else None,
            ),
            class_={"cured": "cured", "not cured": "failed"}.get(str(item.get("tried"))),
        )
        for item in known
    ]
    return tag("div", tag("h4", "Tried on this step"), tag("ul", items, class_="remedies"))


def happened(data: ChartData) -> Node | None:
    """What the guard did, and what else the run told."""
    if not data.marks:
        return None
    items = [tag("li", jump(mark.x, mark.step, data), f" {mark.label}") for mark in data.marks]
    if data.marks_left_out:
        items.append(tag("li", f"and {data.marks_left_out} between them that are not listed"))
    count = len(data.marks) + data.marks_left_out
    listed = tag("ul", items, class_="plain")
    return _folded(f"What happened on the way ({count})", [listed], open_=count <= 8)


def checkpoints(report: PageReport) -> Node | None:
    """The saved states that were looked through."""
    saved = [item for item in report.sources if "clean" in item]
    if not saved:
        return None
    rows = [
        [
            said(item.get("step")),
            said(item.get("tensors")),
            said(item.get("bytes"), "bytes"),
            said(item.get("nonfinite")),
            "✓ clean" if item.get("clean") else "✗ not clean",
            str(item.get("path")),
        ]
        for item in saved[-MOST_CHECKPOINTS:]
    ]
    head = ("step", "tensors", "size", "NaN or Inf", "state", "checkpoint")
    table = _table("Checkpoints", head, rows, numbers=(0, 1, 2, 3))
    more = len(saved) - MOST_CHECKPOINTS
    note = (
        tag("p", f"The last {MOST_CHECKPOINTS}; {more} older are not shown.") if more > 0 else None
    )
    return section("checkpoints", "Checkpoints", [table, note])


def coverage(not_run: Sequence[NotRun], ran: int, of: int) -> Node:
    """What was looked at, and why the rest was not."""
    told: list[Child] = [tag("p", f"{ran} of {of} checks could run on this source.")]
    if not_run:
        by_reason: dict[str, list[str]] = {}
        for item in not_run:
            by_reason.setdefault(item.reason, []).append(item.code)
        ranked = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
        rows = [[reason, ", ".join(codes)] for reason, codes in ranked]
        table = _table("Checks that were not run", ("why", "checks"), rows)
        told.append(_folded(f"Not run: {len(not_run)}, and why", [table]))
    return section("coverage", "Coverage", told)


def environment(report: PageReport, data: ChartData) -> Node:
    """What the run said of itself, and what was read."""
    told: list[Child] = []
    facts = [(key, value) for key, value in data.facts.items() if value not in (None, {}, [])]
    if facts:
        told.append(facts_table(facts[:MOST_FACTS]))
    read = [item for item in report.sources if "clean" not in item]
    if read:
        rows = [
            [str(item.get("path")), said(item.get("format")), _used(item)] for item in read[:100]
        ]
        told.append(_table("What was read", ("file", "read as", "lines used"), rows))
    if report.notes:
        told.append(tag("ul", [tag("li", note) for note in report.notes], class_="plain"))
    if not told:
        told.append(tag("p", "Nothing is known of it.", class_="quiet"))
    return section("environment", "Environment and settings", told)


def _used(item: Mapping[str, Any]) -> str:
    return f"{said(item.get('used'))} of {said(item.get('lines'))}"


def section(key: str, title: str, inside: Sequence[Child]) -> Node:
    """A part of the page with its heading."""
    return tag(
        "section",
        tag("h2", title, id=f"{key}-title"),
        inside,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def _folded(summary: str, inside: Sequence[Child], *, open_: bool = False) -> Node:
    return tag("details", tag("summary", summary), inside, open=open_)


def _table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> Node:
    def cells(kind: str, row: Sequence[str]) -> Iterator[Node]:
        for at, cell in enumerate(row):
            scope = "col" if kind == "th" else None
            yield tag(kind, prose(cell), class_="number" if at in numbers else None, scope=scope)

    # It scrolls by itself where it is too wide, and so has to be reachable with the keyboard.
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", cells("th", head))),
            tag("tbody", [tag("tr", cells("td", row)) for row in rows]),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _count(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(item.severity == severity for item in findings)
