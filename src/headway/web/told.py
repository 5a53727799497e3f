"""What the page is told, as JSON data: text cleaned and cut, numbers such that JSON has them.

The script puts text on the page as text, never as markup; that it is clean is the second lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.charts.gather import ChartData
from headway.core.findings import Finding, Severity
from headway.core.incident import concerns, incident_of
from headway.core.numbers import encode_numbers, round_digits
from headway.core.records import EventRecord
from headway.report import Report
from headway.sinks.console import say_where
from headway.sinks.coverage import unlocking
from headway.sinks.html import drawing
from headway.sinks.html.around import around
from headway.sinks.html.sections import pieces
from headway.sinks.html.sections.incidents import (
    ABOUT_INCIDENT,
    SAID_OF_INCIDENT,
    TOLD_OF_INCIDENT,
)
from headway.sinks.plain import clean
from headway.web.foreign_run import ForeignRun
from headway.web.inside import Root
from headway.web.own_run import OwnRun

LONGEST = 1200
LONGEST_LINE = 300
MOST_FINDINGS = 500
MOST_EVIDENCE = 40
MOST_FACTS = 100
MOST_REMEDIES = 40
MOST_OPERANDS = 12
RUNGS = {"skip": "skipped", "back-off": "backed off", "roll-back": "rolled back", "halt": "halted"}

AnyRun = OwnRun | ForeignRun


def text(words: object, most: int = LONGEST) -> str:
    """Somebody's words, on one line, without invisible characters, not too long."""
    said = clean(words)
    return said if len(said) <= most else f"{said[:most]}…"


def summary(run: AnyRun) -> dict[str, Any]:
    """A line of the list."""
    report = run.report()
    counts = {"error": 0, "warning": 0, "info": 0}
    first = ""
    if report is not None:
        for finding in report.findings:
            counts[str(finding.severity)] += 1
        if report.causes and report.causes[0].root.severity > Severity.INFO:
            root = report.causes[0].root
            first = text(f"{root.code} {root.name}", 100)
    drawn, checked = run.progress()
    latest = run.latest()
    loss = latest.get("loss")
    speed = latest.get("speed")
    return {
        "id": run.id,
        "name": text(run.name, LONGEST_LINE),
        "source": text(run.source, 60),
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
        "why": text(run.wrong, LONGEST_LINE) if isinstance(run, ForeignRun) else "",
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
    return text(f"{RUNGS.get(action, action)} at step {guard['step']}", 80)


def details(run: AnyRun, root: Root) -> dict[str, Any]:
    """All that is known of a run but its numbers."""
    report = run.report()
    with run.lock:
        data = run.charts(None, None, 2) or ChartData()
        told = [*data.incidents]
    found = {"summary": summary(run), "end": data.end, "turns": _turns(data)}
    if report is None:
        return {**found, "causes": [], "incidents": [], "coverage": None, "facts": [], "notes": []}
    by_reason: dict[str, list[str]] = {}
    for item in report.not_run:
        by_reason.setdefault(text(item.reason, LONGEST_LINE), []).append(item.code)
    best = unlocking(report.not_run)
    return {
        **found,
        "verdict": _verdict(report),
        "causes": [
            {
                **finding(cause.root, data, told),
                "symptoms": [finding(item, data, told) for item in cause.symptoms[:MOST_REMEDIES]],
            }
            for cause in report.causes[:MOST_FINDINGS]
        ],
        "left_out": max(len(report.causes) - MOST_FINDINGS, 0),
        "incidents": [
            _incident(number, event, data, _context(root, run.path, told, number))
            for number, event in enumerate(told)
        ],
        "coverage": {
            **report.coverage.to_dict(),
            "unlock": None if best is None else [text(best[0], 100), best[1]],
            "not_run": sorted(by_reason.items(), key=lambda pair: -len(pair[1])),
        },
        "facts": _rows(data.facts, MOST_FACTS),
        "notes": [text(note) for note in report.notes[:50]],
        "path": text(run.path, LONGEST_LINE),
    }


def _verdict(report: Report) -> str:
    if not report.causes or report.worst < Severity.WARNING:
        return "Nothing was found that would need a change."
    root = report.causes[0].root
    at = "" if root.step is None else f" at step {root.step}"
    why = root.evidence.get("why")
    said = why if isinstance(why, str) and why else root.message
    return text(f"{root.code} {root.name}{at}: {said}")


def finding(item: Finding, data: ChartData, incidents: Sequence[EventRecord]) -> dict[str, Any]:
    """A finding: what, where, why, what to do."""
    source = item.evidence.get("source")
    explained = [
        number
        for number, event in enumerate(incidents)
        if (known := incident_of(event)) is not None and concerns(known, item)
    ]
    return {
        "key": text(f"{item.code}.{item.segment}.{item.seq}.{item.subject}", LONGEST_LINE),
        "code": text(item.code, 20),
        "name": text(item.name, 100),
        "severity": str(item.severity),
        "step": item.step,
        "x": None if item.step is None else data.place(item.order, item.step),
        "message": text(item.message),
        "where": text(say_where(item.where), LONGEST_LINE * 2),
        "source": text(source.strip(), LONGEST_LINE * 2) if isinstance(source, str) else "",
        "remedies": [
            {"text": text(remedy.text), "tested": remedy.tested, "cured": remedy.cured}
            for remedy in item.remedies[:MOST_REMEDIES]
        ],
        "evidence": _rows(
            {key: value for key, value in item.evidence.items() if key not in TOLD_OF_INCIDENT},
            MOST_EVIDENCE,
        ),
        "incident": explained[0] if explained else None,
    }


def _rows(facts: Mapping[str, Any], most: int) -> list[list[str]]:
    return [
        [text(str(key).replace("_", " "), 100), text(pieces.said(value, str(key)), 600)]
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
        words: SAID_OF_INCIDENT.get(str(told.get(key)), told.get(key))
        for key, words in ABOUT_INCIDENT.items()
    }
    return {
        "number": number,
        "step": event.step,
        "x": data.place((event.segment, event.seq), event.step),
        "headline": text(told.get("headline") or "What happened could not be found out."),
        "births": [_birth(birth) for birth in births[:3]],
        "about": [row for row in _rows(about, 20) if row[1] not in ("", "unknown")],
        "trials": [
            {
                "text": text(trial["text"]),
                "tried": text(trial.get("tried", ""), 40),
                "why": text(trial.get("why") or "", LONGEST_LINE),
            }
            for trial in _list(told.get("trials"))[:MOST_REMEDIES]
            if isinstance(trial, Mapping) and trial.get("text")
        ],
        "context": context,
    }


def _birth(birth: Mapping[str, Any]) -> dict[str, Any]:
    operands = [item for item in _list(birth.get("inputs")) if isinstance(item, Mapping)]
    output = birth.get("output")
    if isinstance(output, Mapping):
        operands = [*operands[: MOST_OPERANDS - 1], output]
    return {
        "op": text(birth.get("op") or "", 100),
        "phase": text(birth.get("phase") or "", 40),
        "module": text(birth.get("module") or "", LONGEST_LINE),
        "place": _place(birth.get("place")),
        "called_from": _place(birth.get("called_from")),
        "operands": [
            [
                text(item.get("name"), 100),
                text("×".join(str(size) for size in _list(item.get("shape"))) or "scalar", 100),
                *(text(pieces.said(item.get(key)), 40) for key in ("dtype", "low", "high")),
                *(text(pieces.said(item.get(key, 0)), 40) for key in ("nan", "inf", "zero")),
            ]
            for item in operands[:MOST_OPERANDS]
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
        "at": text(f"{place['file']}:{place.get('line')}{within}", LONGEST_LINE * 2),
        "line": text(place.get("line"), 20),
        "source": text(source.strip(), LONGEST_LINE) if isinstance(source, str) else "",
    }


def _context(
    root: Root, path: Path, incidents: Sequence[EventRecord], number: int
) -> list[list[Any]]:
    """The lines around the bad one, as the incident's own page has kept them."""
    return [
        [
            text(line, 20),
            " " * min(len(code) - len(code.lstrip(" ")), 80) + text(code.strip(), LONGEST_LINE),
            bad,
        ]
        for line, code, bad in around(path, incidents, number, root.text)
    ]


def timeline(data: ChartData | None, findings: Sequence[Finding], run: AnyRun) -> dict[str, Any]:
    """The charts of a run."""
    drawn = data or ChartData()
    held_x, _ = drawn.held.points()
    return {
        "version": run.version,
        "drawn": round(run.progress()[0], 4),
        "end": drawn.end,
        "turns": _turns(drawn),
        "panels": drawing.panels(drawn),
        "components": drawing.components(drawn),
        "maps": [],
        "flags": drawing.flags(findings, drawn),
        "marks": [[mark.x, text(mark.kind, 40), text(mark.label, 300)] for mark in drawn.marks],
        "held": held_x.tolist(),
        "missing": drawing.missing(drawn),
        "left_out": drawn.series_left_out,
    }


def layers(data: ChartData | None) -> list[dict[str, Any]]:
    """The layer × step pictures, each with what it says in words."""
    if data is None:
        return []
    said = [drawing.map_says(data, name) for name in data.maps]
    return [
        {**drawn, "says": text(words)}
        for drawn, words in zip(drawing.heat_maps(data), said, strict=True)
    ]


def overlaid(drawn: Sequence[tuple[AnyRun, ChartData]]) -> dict[str, Any]:
    """The same charts of several runs, one over the other, each run in a colour of its own."""
    panels: dict[str, dict[str, Any]] = {}
    for colour, (run, data) in enumerate(drawn):
        for panel in [*drawing.panels(data), *drawing.components(data)]:
            shared = panels.setdefault(panel["id"], {**panel, "series": [], "says": ""})
            for number, series in enumerate(panel["series"]):
                label = text(run.name, 80)
                if len(panel["series"]) > 1:
                    label = f"{label}: {series['label']}"
                look = {"label": label, "colour": colour, "dashed": number > 0}
                shared["series"].append({**series, **look})
    return {
        "end": max((data.end for _, data in drawn), default=0),
        "turns": [],
        "repeated": [text(run.name, 80) for run, data in drawn if data.turns],
        "panels": list(panels.values()),
        "components": [],
        "maps": [],
        "flags": [],
        "marks": [],
        "held": [],
    }


def _turns(data: ChartData) -> list[list[int]]:
    return [[turn.x, turn.offset] for turn in data.turns]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
