"""The JSON data of the live page: the views of reports and incidents, with cleaned, clipped text.

The page's scripts insert text as text, never as markup; cleaning it here is a second safeguard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.findings import Finding, Remedy
from headway.core.records import EventRecord
from headway.output.code_frame import edit_diff
from headway.output.display_text import clean
from headway.output.html import chart_json, layer_json, markup, report_page
from headway.output.html.incident_sections import (
    AROUND_COLUMNS,
    OPERAND_COLUMNS,
    marked_row,
    operand_row,
    rows_around,
)
from headway.output.incident_view import (
    INCIDENT_EVIDENCE,
    MAX_ORIGINS,
    LineView,
    OriginView,
    read_incident_view,
    read_samples,
    read_source_lines,
)
from headway.output.run_story import (
    IncidentGroup,
    find_incident,
    group_incidents,
    headline,
    run_length,
    tell_incident,
    tell_story,
)
from headway.output.view import (
    CauseView,
    format_where,
    group_not_run,
    trial_text,
    verdict_of,
)
from headway.rundir.chart_data import ChartData
from headway.web.access import ServedFolder
from headway.web.run_table import MAX_LINE_LENGTH, AnyRun, clip_text, summarize_run

MAX_FINDINGS = 500
MAX_EVIDENCE = 40
MAX_FACTS = 100
MAX_REMEDIES = 40
STEPS_READ_AROUND = 50


def describe_run(run: AnyRun, root: ServedFolder) -> dict[str, Any]:
    """Everything about a run except its charts."""
    report = run.report()
    with run.lock:
        data = run.charts(None, None, 2) or ChartData()
        incidents = [*data.incidents]
    found = {"summary": summarize_run(run), "end": data.end, "jumps": _axis_jumps(data)}
    if report is None:
        return {**found, "causes": [], "incidents": [], "coverage": None, "facts": [], "notes": []}
    verdict = verdict_of(report)
    return {
        **found,
        "headline": clip_text(headline(report, data, running=run.state() == "running"), 200),
        "story": [clip_text(told) for told in tell_story(report, data)],
        "length": run_length(data) if data.exact else "",
        "causes": [
            {
                **describe_finding(cause.root, data, incidents),
                "symptoms": [
                    describe_finding(item, data, incidents)
                    for item in cause.symptoms[:MAX_REMEDIES]
                ],
            }
            for cause in report.causes[:MAX_FINDINGS]
        ],
        "left_out": max(len(report.causes) - MAX_FINDINGS, 0),
        "incidents": [
            {
                **_incident(group, data, _context(root, run.path, incidents, group.number)),
                **_incident_story(run, report.causes, data, group),
                "samples": _samples(root, run.path, incidents, group.number),
            }
            for group in group_incidents(incidents)
        ],
        "coverage": {
            **report.coverage.to_dict(),
            "text": clip_text(verdict.coverage, MAX_LINE_LENGTH),
            "not_run": [
                (clip_text(reason, MAX_LINE_LENGTH), codes)
                for reason, codes in group_not_run(report.not_run)
            ],
        },
        "facts": _rows(data.facts, MAX_FACTS),
        "notes": [clip_text(note) for note in report.notes[:50]],
        "path": clip_text(run.path, MAX_LINE_LENGTH),
    }


def describe_finding(
    item: Finding, data: ChartData, incidents: Sequence[EventRecord]
) -> dict[str, Any]:
    """A finding with its location, evidence and remedies."""
    source = item.evidence.get("source")
    return {
        "key": chart_json.finding_key(item),
        "code": clip_text(item.code, 20),
        "name": clip_text(item.name, 100),
        "severity": str(item.severity),
        "step": item.step,
        "x": None if item.step is None else data.place(item.order, item.step),
        "message": clip_text(item.message),
        "where": clip_text(format_where(item.where, message=item.message), MAX_LINE_LENGTH * 2),
        "source": clip_text(source.strip(), MAX_LINE_LENGTH * 2) if isinstance(source, str) else "",
        "remedies": _remedies(item.remedies),
        "evidence": _rows(
            {key: value for key, value in item.evidence.items() if key not in INCIDENT_EVIDENCE},
            MAX_EVIDENCE,
        ),
        "incident": find_incident(item, incidents),
    }


def _remedies(remedies: Sequence[Remedy]) -> list[dict[str, Any]]:
    return [
        {
            "text": clip_text(remedy.text),
            "tested": remedy.tested,
            "cured": remedy.cured,
            "trial": trial_text(remedy),
            "diff": [clean(line)[:MAX_LINE_LENGTH] for line in edit_diff(remedy.edits)],
        }
        for remedy in remedies[:MAX_REMEDIES]
    ]


def _rows(facts: Mapping[str, Any], most: int) -> list[list[str]]:
    return [
        [
            clip_text(str(key).replace("_", " "), 100),
            clip_text(markup.format_value(value, str(key)), 600),
        ]
        for key, value in list(facts.items())[:most]
        if value not in (None, {}, [])
    ]


def _incident(group: IncidentGroup, data: ChartData, context: list[list[Any]]) -> dict[str, Any]:
    event = group.event
    incident = read_incident_view(event.data)
    return {
        "number": group.number,
        "repeats": [
            {"step": item.step, "x": data.place((item.segment, item.seq), item.step)}
            for item in group.repeats
        ],
        "step": event.step,
        "x": data.place((event.segment, event.seq), event.step),
        "origins": [_origin(origin) for origin in incident.origins[:MAX_ORIGINS]],
        "columns": OPERAND_COLUMNS,
        "facts": _rows(dict(incident.facts()), 20),
        "trials": [
            {
                "text": clip_text(trial.text),
                "outcome": clip_text(trial.outcome, 40),
                "mark": trial.mark,
                "why": clip_text(trial.why, MAX_LINE_LENGTH),
            }
            for trial in incident.trials[:MAX_REMEDIES]
        ],
        "context": context,
    }


def _incident_story(
    run: AnyRun, causes: Sequence[CauseView], data: ChartData, group: IncidentGroup
) -> dict[str, Any]:
    """An incident in words, and the steps before and after it in full detail."""
    x = data.place((group.event.segment, group.event.seq), group.event.step)
    near = run.charts(max(x - STEPS_READ_AROUND, 0), x + STEPS_READ_AROUND, 4 * STEPS_READ_AROUND)
    story = tell_incident(causes, near or data, group)
    found: dict[str, Any] = {
        "title": clip_text(story.title, 200),
        "sentences": [clip_text(text) for text in story.sentences],
        "fixes": _remedies(story.fixes),
        "around": None,
    }
    if near is not None and (rows := rows_around(near, x)):
        shown = [[clip_text(cell, MAX_LINE_LENGTH) for cell in row] for row in rows]
        marked = marked_row(near, rows, x)
        found["around"] = {"columns": AROUND_COLUMNS, "rows": shown, "marked": marked}
    return found


def _samples(
    root: ServedFolder, path: Path, incidents: Sequence[EventRecord], number: int
) -> list[dict[str, Any]]:
    """Previews of the failing samples."""
    return [
        {
            "title": clip_text(sample.title, 200),
            "parts": [
                {
                    "name": clip_text(part.name, 120),
                    "about": clip_text(part.about, MAX_LINE_LENGTH),
                    "lines": [clip_text(line) for line in part.lines],
                    "picture": part.picture,
                    "is_text": part.kind == "text",
                }
                for part in sample.parts
            ],
        }
        for sample in read_samples(path, incidents, number, root.text)
    ]


def _origin(origin: OriginView) -> dict[str, Any]:
    return {
        "where": clip_text(origin.where, MAX_LINE_LENGTH),
        "place": _place(origin.place),
        "called_from": _place(origin.called_from),
        "operands": [
            [clip_text(cell, 100) for cell in operand_row(item)] for item in origin.operands
        ],
    }


def _place(place: LineView | None) -> dict[str, str] | None:
    if place is None:
        return None
    return {
        "at": clip_text(place.at, MAX_LINE_LENGTH * 2),
        "line": clip_text(place.line, 20),
        "source": clip_text(place.source, MAX_LINE_LENGTH),
    }


def _context(
    root: ServedFolder, path: Path, incidents: Sequence[EventRecord], number: int
) -> list[list[Any]]:
    """The source around the failing line, from the incident's README.md."""
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
    data: ChartData | None, causes: Sequence[CauseView], run: AnyRun
) -> dict[str, Any]:
    """The charts of a run."""
    drawn = data or ChartData()
    held_x, _ = drawn.held.points()
    return {
        "version": run.version,
        "drawn": round(run.progress()[0], 4),
        "end": drawn.end,
        "jumps": _axis_jumps(drawn),
        "panels": chart_json.panels(drawn),
        "components": chart_json.components(drawn),
        "system": chart_json.system_panels(drawn),
        "maps": [],
        "flags": chart_json.flags(causes, drawn),
        "clocks": chart_json.clocks(drawn),
        "marks": [
            [mark.x, clip_text(mark.kind, 40), clip_text(mark.label, 300)] for mark in drawn.marks
        ],
        "held": held_x.tolist(),
        "missing": chart_json.list_missing_signals(drawn),
        "left_out": drawn.series_left_out,
    }


REPORT_INTERVALS = 1500
READ_WHILE_RUNNING, READ_AT_END = 0.97, 0.999
"""Share of a run that is drawn and checked before it can be saved. A running one is never read to
its end."""


def report_file(run: AnyRun, root: ServedFolder) -> str | None:
    """The run as one HTML file; None while it is being read."""
    report, needed = run.report(), READ_WHILE_RUNNING if run.state() == "running" else READ_AT_END
    data = run.charts(None, None, REPORT_INTERVALS, maps=True)
    if report is None or data is None or min(run.progress()) < needed:
        return None
    return report_page.render(report, data, subject=run.name, folder=run.path, read=root.text)


def layer_data(data: ChartData | None, causes: Sequence[CauseView]) -> dict[str, Any]:
    """The layer × step heat maps, each with a description, and the layers that changed first."""
    if data is None:
        return {"maps": [], "changes": []}
    return {"maps": layer_json.heat_maps(data), "changes": layer_json.first_changes(causes, data)}


def comparison_data(runs: Sequence[tuple[AnyRun, ChartData | None]]) -> dict[str, Any]:
    """The charts of several runs, overlaid, with one colour per run: its position.

    Of a run that is not read yet there is no data.
    """
    panels: dict[str, dict[str, Any]] = {}
    drawn = [(run, data) for run, data in runs if data is not None]
    for colour, (run, data) in enumerate(runs):
        if data is None:
            continue
        system = chart_json.system_panels(data, ranks=False)
        for panel in [*chart_json.panels(data), *chart_json.components(data), *system]:
            shared = panels.setdefault(panel["id"], {**panel, "series": [], "says": ""})
            for number, series in enumerate(panel["series"]):
                label = clip_text(run.name, 80)
                if len(panel["series"]) > 1:
                    label = f"{label}: {series['label']}"
                look = {"label": label, "colour": colour, "dashed": number > 0}
                look["part"] = series["label"]
                shared["series"].append({**series, **look})
    return {
        "end": max((data.end for _, data in drawn), default=0),
        "jumps": [],
        "repeated": [clip_text(run.name, 80) for run, data in drawn if data.jumps],
        "run_clocks": [data and chart_json.clocks(data) for _, data in runs],
        "panels": [panel for panel in panels.values() if "small" not in panel],
        "components": [],
        "system": [panel for panel in panels.values() if "small" in panel],
        "maps": [],
        "flags": [],
        "marks": [],
        "held": [],
    }


def _axis_jumps(data: ChartData) -> list[list[int]]:
    return [[jump.x, jump.offset] for jump in data.jumps]
