"""What happened in a run, in a line and in three sentences; the steps around a bad one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.findings import Finding, Severity, SourceEdit
from headway.core.numbers import plural, say
from headway.core.records import EventRecord
from headway.output.code_frame import edit_diff
from headway.output.incident_view import read_incident_view
from headway.output.view import ReportView, verdict_of
from headway.rundir.chart_data import ChartData
from headway.rundir.downsample import Downsampler

MAX_SOURCE_BYTES = 1 << 21
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


def _what(root: Finding) -> str:
    kind = next((word for word in ("NaN", "Inf") if word in root.message), "")
    samples = root.evidence.get("data_set") or root.evidence.get("samples")
    if kind and isinstance(samples, (list, tuple)) and samples:
        more = f" and {len(samples) - 1} more" if len(samples) > 1 else ""
        return f"{kind} in sample {samples[0]}{more}"
    at = "" if root.step is None else f" at step {root.step}"
    name = root.name.replace("nonfinite", "non-finite").replace("-", " ")
    return f"{name[:1].upper()}{name[1:]}{at}".replace("Non finite", "Non-finite")


def tell_story(report: ReportView, data: ChartData) -> list[str]:
    """At most three sentences: what happened, what was done about it, what to change."""
    told = [verdict_of(report).sentence]
    if not report.causes:
        return told
    done = [f"skipped {plural(data.skipped, 'update')}"] if data.skipped else []
    for action, words in (("back-off", "lowered the rate"), ("roll-back", "rolled back")):
        times = sum(mark.kind == "action" and mark.label.startswith(action) for mark in data.marks)
        done += [f"{words} {plural(times, 'time')}"] if times else []
    ended = {"finished": ", and the run finished", "failed": ", and the run failed"}
    if done:
        told.append(f"The guard {' and '.join(done)}{ended.get(data.ending, '')}.")
    cured = next((item for item in report.causes[0].root.remedies if item.cured), None)
    if cured is not None:
        told.append(f"Tested on the failing step and cured: {cured.text.rstrip('.')}.")
    return told


def recorded_diff(edits: Sequence[SourceEdit]) -> list[str]:
    """A fix as removed and added lines; empty if the source is not the one that was run.

    A log may name any file. It is opened only to compare it with the digest in the log, so a log
    cannot show what its writer did not have.
    """
    if not edits or not all(edit.sha256 for edit in edits):
        return []
    try:
        source = Path(edits[0].file)
        if not source.is_file() or source.stat().st_size > MAX_SOURCE_BYTES:
            return []
    except (OSError, ValueError):
        return []
    return edit_diff(edits)


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
    """The values next to an x, as far as they were kept."""
    if series is None:
        return {}
    xs, ys = series.points()
    at = int(np.searchsorted(xs, x))
    near = slice(max(at - STEPS_AROUND, 0), at + STEPS_AROUND + 1)
    found = {int(place): say(float(y), 4) for place, y in zip(xs[near], ys[near], strict=True)}
    short = {"Infinity": "Inf", "-Infinity": "-Inf"}
    for gap in series.gaps():
        if gap.first <= x <= gap.last:
            found[x] = short.get(gap.kind, gap.kind)
    return found
