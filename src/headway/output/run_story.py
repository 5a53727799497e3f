"""What happened in a run, in a line and in three sentences; the steps around a bad one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.findings import Finding, Remedy, Severity, say_line
from headway.core.incident_events import incident_concerns, read_incident
from headway.core.numbers import plural, say
from headway.core.records import EventRecord
from headway.output.incident_view import read_incident_view
from headway.output.view import CauseView, ReportView, verdict_of
from headway.rundir.chart_data import ChartData
from headway.rundir.downsample import Downsampler
from headway.rundir.timeline import find_step

STEPS_AROUND = 3
"""Steps listed before and after an incident."""
ENDINGS = {"finished": "run finished", "failed": "run failed", "interrupted": "run interrupted"}


def say_duration(seconds: float) -> str:
    """`48 s`, `12 min`, `3 h 20 min`, `2 d 5 h`."""
    if seconds < 90:
        return f"{say(seconds, 2)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def training_seconds(data: ChartData) -> float | None:
    """The sum of the step times; None if they were not recorded."""
    clock = data.clocks.get("time")
    if clock is None:
        return None
    _, seconds = clock.points()
    return float(seconds[-1]) if len(seconds) else None


def run_length(data: ChartData) -> str:
    """`4000 steps in 3 h 20 min`; empty without steps."""
    if not data.steps:
        return ""
    seconds = training_seconds(data)
    return plural(data.steps, "step") + (f" in {say_duration(seconds)}" if seconds else "")


def headline(report: ReportView, data: ChartData, *, running: bool = False) -> str:
    """`NaN in sample 4000, 4 updates skipped, run finished`; the verdict if nothing was found."""
    verdict = verdict_of(report)
    if not report.causes or report.causes[0].root.severity < Severity.WARNING:
        return "Healthy so far" if running and verdict.level == "healthy" else verdict.word
    ending = verdict.ending or data.ending
    parts = [
        _what(report.causes[0].root),
        f"{plural(data.skipped, 'update')} skipped" if data.skipped else "",
        "still running" if running else ENDINGS.get(ending, ""),
    ]
    return ", ".join(part for part in parts if part)


def _what(root: Finding, *, with_step: bool = True) -> str:
    """`NaN in sample 4000`, or with the step `Inf at train.py:36`, `Gradient spike`."""
    kind = next((word for word in ("NaN", "Inf") if word in root.message), "")
    samples = root.evidence.get("data_set") or root.evidence.get("samples")
    if kind and isinstance(samples, (list, tuple)) and samples:
        more = f" and {len(samples) - 1} more" if len(samples) > 1 else ""
        return f"{kind} in sample {samples[0]}{more}"
    at = f" at step {root.step}" if with_step and root.step is not None else ""
    place = root.where
    if kind and "why" in root.evidence and place.file and place.line:
        return f"{kind} at {say_line(Path(place.file).name, place.line)}{at.replace(' at', ' in')}"
    name = root.name.replace("nonfinite", "non-finite").replace("-", " ")
    return f"{name[:1].upper()}{name[1:]}{at}".replace("Non finite", "Non-finite")


def tell_story(report: ReportView, data: ChartData) -> list[str]:
    """At most three sentences: what happened, what was done about it, what to change."""
    story = [verdict_of(report).sentence]
    if not report.causes:
        return story
    done = [f"skipped {plural(data.skipped, 'update')}"] if data.skipped else []
    for action, words in (("back-off", "lowered the rate"), ("roll-back", "rolled back")):
        times = sum(mark.kind == "action" and mark.label.startswith(action) for mark in data.marks)
        done += [f"{words} {plural(times, 'time')}"] if times else []
    ended = {"finished": ", and the run finished", "failed": ", and the run failed"}
    if done:
        story.append(f"The guard {' and '.join(done)}{ended.get(data.ending, '')}.")
    cured = next((item for item in report.causes[0].root.remedies if item.cured), None)
    if cured is not None:
        story.append(f"Tested on the failing step and cured: {cured.text.rstrip('.')}.")
    return story


@dataclass(frozen=True, slots=True)
class IncidentGroup:
    """Incidents with the same cause: the first, and those that repeat it."""

    number: int
    event: EventRecord
    repeats: list[EventRecord]


def group_incidents(incidents: Sequence[EventRecord]) -> list[IncidentGroup]:
    """One entry per cause, in the order in which they first occurred."""
    groups: dict[object, IncidentGroup] = {}
    for number, event in enumerate(incidents):
        view = read_incident_view(event.data)
        first = view.origins[0] if view.origins else None
        place = first.place.at if first is not None and first.place is not None else ""
        # Incidents without a line have nothing by which to call them the same.
        key = (place, first.where if first else "", view.caused_by) if place else number
        known = groups.setdefault(key, IncidentGroup(number, event, []))
        if known.event is not event:
            known.repeats.append(event)
    return list(groups.values())


def find_incident(finding: Finding, incidents: Sequence[EventRecord]) -> int | None:
    """The number of the incident that explains a finding; of several with one cause, the first."""
    for group in group_incidents(incidents):
        for event in (group.event, *group.repeats):
            known = read_incident(event)
            if known is not None and incident_concerns(known, finding):
                return group.number
    return None


@dataclass(frozen=True, slots=True)
class IncidentStory:
    """An incident in words, complete without the rest of the page."""

    title: str
    sentences: list[str]
    """At most three: what happened, what the guard did, the fix."""
    fixes: Sequence[Remedy]
    """What was tried on the failing step."""


def tell_incident(
    causes: Sequence[CauseView], data: ChartData, group: IncidentGroup
) -> IncidentStory:
    """What happened at a bad step that was run again."""
    view = read_incident_view(group.event.data)
    root = _cause_of(causes, group)
    remedies = () if root is None else root.remedies
    fixes = [remedy for remedy in remedies if remedy.tested]
    sentences = [f"{view.headline.rstrip('.')}."]
    if done := _before_and_after(data, group):
        sentences.append(done)
    cured = next((remedy.text for remedy in fixes if remedy.cured), None)
    if cured is not None:
        sentences.append(f"Tested on this step and cured: {cured.rstrip('.')}.")
    elif fixes:
        sentences.append(f"{plural(len(fixes), 'change')} tried on this step did not help.")
    title = "Bad step" if root is None else _what(root, with_step=False)
    return IncidentStory(title, sentences, fixes)


def _cause_of(causes: Sequence[CauseView], group: IncidentGroup) -> Finding | None:
    """The first cause that the incident explains, itself or one of its symptoms."""
    known = [read_incident(event) for event in (group.event, *group.repeats)]
    for cause in causes:
        for finding in (cause.root, *cause.symptoms):
            if any(item is not None and incident_concerns(item, finding) for item in known):
                return cause.root
    return None


def _before_and_after(data: ChartData, group: IncidentGroup) -> str:
    """What the guard did at the step, and the loss on both sides of it."""
    x = data.place((group.event.segment, group.event.seq), group.event.step)
    skipped = any(mark.x == x and mark.label.startswith("skip") for mark in data.marks)
    losses = _values(data.series.get("loss"), x)
    earlier, later = [p for p in losses if p < x], [p for p in losses if p > x]
    parts = ["The guard skipped the update"] if skipped else []
    if earlier and later:
        before, after = (
            f"{losses[place]} at step {find_step(data.jumps, place)}"
            for place in (max(earlier), min(later))
        )
        parts.append(f"{'the' if parts else 'The'} loss was {before} and {after}")
    return f"{'; '.join(parts)}." if parts else ""


def steps_around(data: ChartData, x: int) -> list[list[str]]:
    """The steps before and after an x: step offset, loss, gradient norm, what happened."""
    columns = [data.series.get(name) for name in ("loss", "grad_norm")]
    known = [_values(series, x) for series in columns]
    places = sorted({place for values in known for place in values} | {x})
    at = places.index(x)
    rows = []
    for place in places[max(at - STEPS_AROUND, 0) : at + STEPS_AROUND + 1]:
        happened = "; ".join(dict.fromkeys(m.label for m in data.marks if m.x == place))
        rows.append([str(place), *(values.get(place, "–") for values in known), happened])
    return rows if len(rows) > 1 else []


def _values(series: Downsampler | None, x: int) -> dict[int, str]:
    """The values next to an x that were kept."""
    if series is None:
        return {}
    xs, ys = series.points()
    at = int(np.searchsorted(xs, x))
    near = slice(max(at - STEPS_AROUND, 0), at + STEPS_AROUND + 1)
    found = {int(place): say(float(y), 4) for place, y in zip(xs[near], ys[near], strict=True)}
    short = {"Infinity": "Inf", "-Infinity": "-Inf"}
    for gap in series.gaps():
        inside = [x] if gap.first <= x <= gap.last else []
        for place in (gap.first, gap.last, *inside):
            found[place] = short.get(gap.kind, gap.kind)
    return found
