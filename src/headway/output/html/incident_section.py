"""The incidents section of the HTML report: source line, operands, origin, tried remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.records import EventRecord
from headway.output.html.markup import (
    HtmlNode,
    facts_table,
    format_value,
    inline_code,
    join,
    section,
    step_button,
    table,
    tag,
)
from headway.output.view import SourcedReportView, SourceLine, read_head, read_source_lines
from headway.rundir.chart_data import ChartData

LONGEST_LINE = 300
INCIDENT_EVIDENCE = ("why", "source", "nature", "guilt", "samples", "data_set", "reached", "phase")
"""Evidence that has a place of its own on the page."""
INCIDENT_LABELS = {
    "nature": "when it is run again",
    "guilt": "it lies in",
    "rank": "rank",
    "notes": "notes",
}
"""What else is told of a step that was run again, and under what words."""
INCIDENT_VALUE_LABELS = {
    "deterministic": "it happens each time",
    "transient": "it does not happen",
    "compiler": "only when compiled",
    "batch": "the batch",
    "weights": "the weights",
    "together": "batch and weights together",
}


def incidents_section(
    report: SourcedReportView, data: ChartData, run: Path | None
) -> HtmlNode | None:
    """The steps that were run again: the line, the numbers that met there, what was tried.

    `run` is the run directory: the lines around are kept there.
    """
    if not data.incidents:
        return None
    # What a finding above says already need not be said again.
    known = {str(item.evidence.get("why")) for item in report.findings}
    told = []
    for number, event in enumerate(data.incidents):
        lines = [] if run is None else read_source_lines(run, data.incidents, number, read_head)
        told.append(_incident(event, data, known, lines))
    return section("incidents", "Incidents", told)


def _incident(
    event: EventRecord, data: ChartData, known: set[str], lines: Sequence[SourceLine]
) -> HtmlNode:
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
        (said_of, INCIDENT_VALUE_LABELS.get(str(told[key]), told[key]))
        for key, said_of in INCIDENT_LABELS.items()
        if told.get(key) not in (None, "unknown", [], ())
    ]
    return tag(
        "article",
        tag("h3", step_button(x, event.step, data), " run again with instruments"),
        None if headline in known else tag("p", inline_code(headline)),
        _code(lines) if lines else None,
        [
            _origin(birth, told_above=headline in known or (at == 0 and bool(lines)))
            for at, birth in enumerate(births[:3])
        ],
        facts_table(about) if about else None,
        None if headline in known else _trials(_list(told.get("trials"))),
        class_="cause",
    )


def _code(lines: Sequence[SourceLine]) -> HtmlNode:
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


def _origin(birth: Mapping[str, Any], *, told_above: bool) -> HtmlNode:
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


def _line(place: Any) -> HtmlNode | None:
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


def _operands(items: Sequence[Mapping[str, Any]]) -> HtmlNode:
    head = ("tensor", "shape", "type", "lowest", "highest", "NaN", "Inf", "zero")
    return table(
        "Tensors of the op",
        head,
        [
            [
                f"{item.get('name')}",
                "×".join(str(size) for size in _list(item.get("shape"))) or "scalar",
                format_value(item.get("dtype")),
                format_value(item.get("low")),
                format_value(item.get("high")),
                *(format_value(item.get(kind, 0)) for kind in ("nan", "inf", "zero")),
            ]
            for item in items
        ],
        numbers=(3, 4, 5, 6, 7),
    )


def _trials(trials: Sequence[Any]) -> HtmlNode | None:
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
                inline_code(str(item["text"])),
                tag("span", f" {item.get('tried')}", class_="tried"),
                tag("span", f" ({item['why']})", class_="quiet") if item.get("why") else None,
            ),
            class_={"cured": "cured", "not cured": "failed"}.get(str(item.get("tried"))),
        )
        for item in known
    ]
    return tag("div", tag("h4", "Tried on this step"), tag("ul", items, class_="remedies"))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
