"""The JSON data of the live page: cleaned, shortened text and JSON-safe numbers.

The script puts text on the page as text, never as markup; that it is clean is the second lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.findings import Finding, Severity
from headway.core.incident_events import incident_concerns, read_incident
from headway.core.numbers import encode_numbers, round_digits
from headway.core.records import EventRecord
from headway.output.display_text import clean
from headway.output.html import chart_json, markup
from headway.output.html.incident_section import (
    INCIDENT_EVIDENCE,
    INCIDENT_LABELS,
    INCIDENT_VALUE_LABELS,
)
from headway.output.view import find_missing_signal, format_where, read_source_lines
from headway.report import Report
from headway.rundir.chart_data import ChartData
from headway.web.access import ServedFolder
from headway.web.own_run import OwnRun
from headway.web.run_entry import ForeignRun

MAX_TEXT_LENGTH = 1200
MAX_LINE_LENGTH = 300
MAX_FINDINGS = 500
MAX_EVIDENCE = 40
MAX_FACTS = 100
MAX_REMEDIES = 40
MAX_OPERANDS = 12
ACTION_LABELS = {
    "skip": "skipped",
    "back-off": "backed off",
    "roll-back": "rolled back",
    "halt": "halted",
}

AnyRun = OwnRun | ForeignRun


def clip_text(words: object, most: int = MAX_TEXT_LENGTH) -> str:
    """Somebody's words, on one line, without invisible characters, not too long."""
    said = clean(words)
    return said if len(said) <= most else f"{said[:most]}…"


def summarize_run(run: AnyRun) -> dict[str, Any]:
    """A line of the list."""
    report = run.report()
    counts = {"error": 0, "warning": 0, "info": 0}
    first = ""
    if report is not None:
        for finding in report.findings:
            counts[str(finding.severity)] += 1
        if report.causes and report.causes[0].root.severity > Severity.INFO:
            root = report.causes[0].root
            first = clip_text(f"{root.code} {root.name}", 100)
    drawn, checked = run.progress()
    latest = run.latest()
    loss = latest.get("loss")
    speed = latest.get("speed")
    return {
        "id": run.id,
        "name": clip_text(run.name, MAX_LINE_LENGTH),
        "source": clip_text(run.source, 60),
        "state": run.state(),
        "changed": run.changed,
        "step": latest.get("step"),
        "loss": None if loss is None else encode_numbers(round_digits(loss, 5)),
        "speed": None if speed is None else round_digits(speed, 3),
        "findings": counts,
        "verdict": _level(report, counts, checked),
        "cause": first,
        "ladder": _ladder(run.guard()),
        "drawn": round(drawn, 4),
        "checked": round(checked, 4),
        "version": run.version,
        "told": run.told,
        "why": clip_text(run.wrong, MAX_LINE_LENGTH) if isinstance(run, ForeignRun) else "",
    }


def _level(report: Report | None, counts: Mapping[str, int], checked: float) -> str:
    if counts["error"]:
        return "error"
    if counts["warning"]:
        return "warning"
    if report is None or checked < 0.999:
        return "reading"
    # Silence must not read as health.
    return "unsure" if report.coverage.ran * 4 <= report.coverage.of else "healthy"


def _ladder(guard: Mapping[str, Any]) -> str:
    if not guard or not guard.get("action"):
        return ""
    action = str(guard["action"])
    return clip_text(f"{ACTION_LABELS.get(action, action)} at step {guard['step']}", 80)


def describe_run(run: AnyRun, root: ServedFolder) -> dict[str, Any]:
    """All that is known of a run but its numbers."""
    report = run.report()
    with run.lock:
        data = run.charts(None, None, 2) or ChartData()
        told = [*data.incidents]
    found = {"summary": summarize_run(run), "end": data.end, "turns": _axis_jumps(data)}
    if report is None:
        return {**found, "causes": [], "incidents": [], "coverage": None, "facts": [], "notes": []}
    by_reason: dict[str, list[str]] = {}
    for item in report.not_run:
        by_reason.setdefault(clip_text(item.reason, MAX_LINE_LENGTH), []).append(item.code)
    best = find_missing_signal(report.not_run)
    return {
        **found,
        "verdict": _verdict(report),
        "causes": [
            {
                **describe_finding(cause.root, data, told),
                "symptoms": [
                    describe_finding(item, data, told) for item in cause.symptoms[:MAX_REMEDIES]
                ],
            }
            for cause in report.causes[:MAX_FINDINGS]
        ],
        "left_out": max(len(report.causes) - MAX_FINDINGS, 0),
        "incidents": [
            _incident(number, event, data, _context(root, run.path, told, number))
            for number, event in enumerate(told)
        ],
        "coverage": {
            **report.coverage.to_dict(),
            "unlock": None if best is None else [clip_text(best[0], 100), best[1]],
            "not_run": sorted(by_reason.items(), key=lambda pair: -len(pair[1])),
        },
        "facts": _rows(data.facts, MAX_FACTS),
        "notes": [clip_text(note) for note in report.notes[:50]],
        "path": clip_text(run.path, MAX_LINE_LENGTH),
    }


def _verdict(report: Report) -> str:
    if not report.causes or report.worst < Severity.WARNING:
        return "Nothing was found that would need a change."
    root = report.causes[0].root
    at = "" if root.step is None else f" at step {root.step}"
    why = root.evidence.get("why")
    said = why if isinstance(why, str) and why else root.message
    return clip_text(f"{root.code} {root.name}{at}: {said}")


def describe_finding(
    item: Finding, data: ChartData, incidents: Sequence[EventRecord]
) -> dict[str, Any]:
    """A finding: what, where, why, what to do."""
    source = item.evidence.get("source")
    explained = [
        number
        for number, event in enumerate(incidents)
        if (known := read_incident(event)) is not None and incident_concerns(known, item)
    ]
    return {
        "key": clip_text(f"{item.code}.{item.segment}.{item.seq}.{item.subject}", MAX_LINE_LENGTH),
        "code": clip_text(item.code, 20),
        "name": clip_text(item.name, 100),
        "severity": str(item.severity),
        "step": item.step,
        "x": None if item.step is None else data.place(item.order, item.step),
        "message": clip_text(item.message),
        "where": clip_text(format_where(item.where), MAX_LINE_LENGTH * 2),
        "source": clip_text(source.strip(), MAX_LINE_LENGTH * 2) if isinstance(source, str) else "",
        "remedies": [
            {"text": clip_text(remedy.text), "tested": remedy.tested, "cured": remedy.cured}
            for remedy in item.remedies[:MAX_REMEDIES]
        ],
        "evidence": _rows(
            {key: value for key, value in item.evidence.items() if key not in INCIDENT_EVIDENCE},
            MAX_EVIDENCE,
        ),
        "incident": explained[0] if explained else None,
    }


def _rows(facts: Mapping[str, Any], most: int) -> list[list[str]]:
    return [
        [
            clip_text(str(key).replace("_", " "), 100),
            clip_text(markup.format_value(value, str(key)), 600),
        ]
        for key, value in list(facts.items())[:most]
        if value not in (None, {}, [])
    ]


def _incident(
    number: int, event: EventRecord, data: ChartData, context: list[list[Any]]
) -> dict[str, Any]:
    told = event.data
    births = [item for item in _list(told.get("births")) if isinstance(item, Mapping)]
    rows = _list(births[0].get("rows")) if births else []
    about: dict[str, Any] = {"samples of the batch": rows, "in the data set": told.get("samples")}
    about |= {
        words: INCIDENT_VALUE_LABELS.get(str(told.get(key)), told.get(key))
        for key, words in INCIDENT_LABELS.items()
    }
    return {
        "number": number,
        "step": event.step,
        "x": data.place((event.segment, event.seq), event.step),
        "headline": clip_text(told.get("headline") or "What happened could not be found out."),
        "births": [_origin(birth) for birth in births[:3]],
        "about": [row for row in _rows(about, 20) if row[1] not in ("", "unknown")],
        "trials": [
            {
                "text": clip_text(trial["text"]),
                "tried": clip_text(trial.get("tried", ""), 40),
                "why": clip_text(trial.get("why") or "", MAX_LINE_LENGTH),
            }
            for trial in _list(told.get("trials"))[:MAX_REMEDIES]
            if isinstance(trial, Mapping) and trial.get("text")
        ],
        "context": context,
    }


def _origin(birth: Mapping[str, Any]) -> dict[str, Any]:
    operands = [item for item in _list(birth.get("inputs")) if isinstance(item, Mapping)]
    output = birth.get("output")
    if isinstance(output, Mapping):
        operands = [*operands[: MAX_OPERANDS - 1], output]
    return {
        "op": clip_text(birth.get("op") or "", 100),
        "phase": clip_text(birth.get("phase") or "", 40),
        "module": clip_text(birth.get("module") or "", MAX_LINE_LENGTH),
        "place": _place(birth.get("place")),
        "called_from": _place(birth.get("called_from")),
        "operands": [
            [
                clip_text(item.get("name"), 100),
                clip_text(
                    "×".join(str(size) for size in _list(item.get("shape"))) or "scalar", 100
                ),
                *(
                    clip_text(markup.format_value(item.get(key)), 40)
                    for key in ("dtype", "low", "high")
                ),
                *(
                    clip_text(markup.format_value(item.get(key, 0)), 40)
                    for key in ("nan", "inf", "zero")
                ),
            ]
            for item in operands[:MAX_OPERANDS]
        ],
    }


def _place(place: Any) -> dict[str, str] | None:
    """A line of code as the incident recorded it: no file is opened that a log names."""
    if not isinstance(place, Mapping) or not place.get("file"):
        return None
    function = place.get("function")
    within = f" in {function}" if function and function != "<module>" else ""
    source = place.get("source")
    return {
        "at": clip_text(f"{place['file']}:{place.get('line')}{within}", MAX_LINE_LENGTH * 2),
        "line": clip_text(place.get("line"), 20),
        "source": clip_text(source.strip(), MAX_LINE_LENGTH) if isinstance(source, str) else "",
    }


def _context(
    root: ServedFolder, path: Path, incidents: Sequence[EventRecord], number: int
) -> list[list[Any]]:
    """The lines around the bad one, as the incident's own page has kept them."""
    return [
        [
            clip_text(line, 20),
            " " * min(len(code) - len(code.lstrip(" ")), 80)
            + clip_text(code.strip(), MAX_LINE_LENGTH),
            bad,
        ]
        for line, code, bad in read_source_lines(path, incidents, number, root.text)
    ]


def timeline_data(
    data: ChartData | None, findings: Sequence[Finding], run: AnyRun
) -> dict[str, Any]:
    """The charts of a run."""
    drawn = data or ChartData()
    held_x, _ = drawn.held.points()
    return {
        "version": run.version,
        "drawn": round(run.progress()[0], 4),
        "end": drawn.end,
        "turns": _axis_jumps(drawn),
        "panels": chart_json.panels(drawn),
        "components": chart_json.components(drawn),
        "maps": [],
        "flags": chart_json.flags(findings, drawn),
        "marks": [
            [mark.x, clip_text(mark.kind, 40), clip_text(mark.label, 300)] for mark in drawn.marks
        ],
        "held": held_x.tolist(),
        "missing": chart_json.list_missing_signals(drawn),
        "left_out": drawn.series_left_out,
    }


def layer_data(data: ChartData | None) -> list[dict[str, Any]]:
    """The layer × step pictures, each with what it says in words."""
    if data is None:
        return []
    said = [chart_json.describe_heat_map(data, name) for name in data.maps]
    return [
        {**drawn, "says": clip_text(words)}
        for drawn, words in zip(chart_json.heat_maps(data), said, strict=True)
    ]


def comparison_data(drawn: Sequence[tuple[AnyRun, ChartData]]) -> dict[str, Any]:
    """The same charts of several runs, one over the other, each run in a colour of its own."""
    panels: dict[str, dict[str, Any]] = {}
    for colour, (run, data) in enumerate(drawn):
        for panel in [*chart_json.panels(data), *chart_json.components(data)]:
            shared = panels.setdefault(panel["id"], {**panel, "series": [], "says": ""})
            for number, series in enumerate(panel["series"]):
                label = clip_text(run.name, 80)
                if len(panel["series"]) > 1:
                    label = f"{label}: {series['label']}"
                look = {"label": label, "colour": colour, "dashed": number > 0}
                shared["series"].append({**series, **look})
    return {
        "end": max((data.end for _, data in drawn), default=0),
        "turns": [],
        "repeated": [clip_text(run.name, 80) for run, data in drawn if data.turns],
        "panels": list(panels.values()),
        "components": [],
        "maps": [],
        "flags": [],
        "marks": [],
        "held": [],
    }


def _axis_jumps(data: ChartData) -> list[list[int]]:
    return [[turn.x, turn.offset] for turn in data.turns]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
