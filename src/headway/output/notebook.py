"""Reports and guards in a notebook: HTML without scripts, and plots with matplotlib."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from headway.core.findings import Finding, Severity
from headway.core.numbers import plural, say
from headway.core.records import Record, StepRecord
from headway.errors import import_optional
from headway.output.code_frame import edit_diff, frame_of
from headway.output.console import verdict_line
from headway.output.display_text import clean
from headway.output.view import (
    ReportView,
    coverage_text,
    finding_title,
    format_where,
    repeats_text,
    trial_text,
)
from headway.rundir.downsample import Downsampler

# Reports and guards as Jupyter shows them: escaped HTML without scripts.

# Colours are named once and readable on light and dark pages; the rest is the notebook's own
# style.

SHOWN = 20
"""Findings in the table; the rest are counted."""
_COLOURS = {Severity.ERROR: "#d33", Severity.WARNING: "#b80", Severity.INFO: "#38a"}
_CELL = "text-align:left;vertical-align:top;padding:2px 8px"


def report_html(
    report: ReportView, curve: tuple[Sequence[int], Sequence[float]] | None = None
) -> str:
    """Verdict, coverage, the loss as a picture, and findings with location and remedies."""
    verdict = "".join(part if isinstance(part, str) else part[0] for part in verdict_line(report))
    picture = "" if curve is None else curve_svg("loss", *curve, report.findings)
    return _block(verdict, [coverage_text(report)], report.findings, picture)


class GuardView(Protocol):
    """The parts of a guard that a notebook shows."""

    @property
    def step(self) -> int: ...
    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def actions(self) -> Sequence[Any]: ...
    @property
    def run_dir(self) -> Any: ...


def guard_state(guard: GuardView, *, closed: bool) -> str:
    """`headway guard: watching, 800 steps, 4 actions`."""
    state = "closed" if closed else "watching"
    return f"headway guard: {state}, {plural(guard.step, 'step')}, " + plural(
        len(guard.actions), "action"
    )


class LossHistory:
    """The loss of every step so far, in bounded memory; listens to the records of a guard."""

    def __init__(self) -> None:
        self._series = Downsampler(_CURVE_POINTS)
        self._span: tuple[int, int] | None = None

    def __call__(self, record: Record) -> None:
        if type(record) is not StepRecord or "loss" not in record.values:
            return
        step = record.step
        if self._span is None or step < self._span[1]:  # the run went back
            self._series, self._span = Downsampler(_CURVE_POINTS), (step, step)
        self._series.add(step, record.values["loss"])
        self._span = (self._span[0], step)

    def svg(self, findings: Sequence[Finding]) -> str:
        """The curve with its findings; empty before the second step."""
        return "" if self._span is None else _series_svg("loss", self._series, self._span, findings)


def keep_losses(listeners: list[Callable[[Record], None]]) -> LossHistory | None:
    """Let a history listen to the records where objects are shown as HTML: with IPython."""
    if "IPython" not in sys.modules:
        return None
    history = LossHistory()
    listeners.append(history)
    return history


def guard_html(guard: GuardView, *, closed: bool, losses: LossHistory | None = None) -> str:
    """State, findings and actions of a guard, and the loss as a picture."""
    actions = guard.actions
    lines = [f"last action: {actions[-1].rung.value}: {actions[-1].reason}"] if actions else []
    if guard.run_dir is not None:
        lines.append(f"run directory: {guard.run_dir}")
    findings = guard.findings  # waits for steps that are still on the device
    picture = "" if losses is None else losses.svg(findings)
    return _block(guard_state(guard, closed=closed), lines, findings, picture)


def finding_html(finding: Finding) -> str:
    """One finding: what, where, the lines around it, and what to do."""
    step = "" if finding.step is None else f", step {finding.step}"
    level = f'<span style="color:{_COLOURS[finding.severity]}">{finding.severity}</span>'
    parts = [f"<div>{level}{_safe(step)}: {_what(finding)}"]
    return "".join([*parts, _remedies(finding), "</div>"])


def findings_html(findings: Sequence[Finding]) -> str:
    """A list of findings: how many, and a table of them."""
    return _block(plural(len(findings), "finding"), [], findings)


def _block(head: str, lines: Iterable[str], findings: Sequence[Finding], picture: str = "") -> str:
    parts = [f"<div><b>{_safe(head)}</b>"]
    parts += [f'<div style="opacity:.75">{_safe(line)}</div>' for line in lines]
    parts.append(picture)
    # The worst first, and among equals the earliest.
    ordered = sorted(findings, key=lambda item: -item.severity)
    if ordered:
        titles = "".join(f'<th style="{_CELL}">{title}</th>' for title in ("", "step", "finding"))
        rows = "".join(map(_row, ordered[:SHOWN]))
        parts.append(f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>")
    if len(ordered) > SHOWN:
        parts.append(f"<div>and {len(ordered) - SHOWN} more</div>")
    return "".join([*parts, "</div>"])


def _row(finding: Finding) -> str:
    level = f'<span style="color:{_COLOURS[finding.severity]}">{finding.severity}</span>'
    step = "" if finding.step is None else str(finding.step)
    # Below, not beside: source lines do not wrap, and would leave no room for a column.
    columns = (level, step, _what(finding) + _remedies(finding))
    cells = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in columns)
    return f"<tr>{cells}</tr>"


def _what(finding: Finding) -> str:
    """Title, message, location and source lines."""
    what = f"<b>{_safe(finding_title(finding))}</b><br>{_safe(finding.message)}"
    if again := repeats_text(finding):
        what += f"<br>{_safe(again)}"
    place = format_where(finding.where, message=finding.message)
    if place and place not in finding.message:
        what += f"<br><code>{_safe(place)}</code>"
    if frame := frame_of(finding):
        lines = (
            f"{'>' if line.main else ' '} {line.number:>4} | {clean(line.text)}" for line in frame
        )
        what += f"<pre>{escape(chr(10).join(lines))}</pre>"
    return what


def _remedies(finding: Finding) -> str:
    """What to do, a line for each; a fix that is an edit as a diff."""
    told = []
    for item in finding.remedies:
        trial = trial_text(item)
        text = f"→ {item.text}" + (f" ({trial})" if trial else "")
        changed = "\n".join(clean(line) for line in edit_diff(item.edits))
        told.append(
            f"<div>{_safe(text)}</div>" + (f"<pre>{escape(changed)}</pre>" if changed else "")
        )
    return "".join(told)


def _safe(text: object) -> str:
    return escape(clean(text))


# The loss within the HTML: an SVG without scripts, in the notebook's own text colour.

WIDE, HIGH, EDGE = 640, 160, 64
"""Size of the picture, and the room for the numbers on its left."""
_CURVE_POINTS = 320
_MARKED = 40


def curve_svg(
    name: str, steps: Sequence[int], values: Sequence[float], findings: Sequence[Finding] = ()
) -> str:
    """A curve as SVG with its findings and non-finite values marked; empty without two points."""
    if any(later < step for step, later in pairwise(steps)):  # the run went back: one after another
        steps, findings = range(len(steps)), ()
    series = Downsampler(_CURVE_POINTS)
    for step, value in zip(steps, values, strict=True):
        series.add(step, value)
    return "" if len(steps) < 2 else _series_svg(name, series, (steps[0], steps[-1]), findings)


def _series_svg(
    name: str, series: Downsampler, span: tuple[int, int], findings: Sequence[Finding]
) -> str:
    x, y = series.points()
    first, last = span
    if len(y) < 2 or first == last:
        return ""
    log = y.min() > 0 and y.max() > _SPREAD * y.min()
    heights = np.log10(y) if log else y
    low, height = float(heights.min()), float(np.ptp(heights)) or 1.0

    def across(step: float) -> float:
        return EDGE + (step - first) / (last - first) * (WIDE - EDGE - 6)

    up = HIGH - 24 - (heights - low) / height * (HIGH - 44)
    points = " ".join(
        f"{across(step):.1f},{place:.1f}"
        for step, place in zip(x.tolist(), up.tolist(), strict=True)
    )
    marks = [
        f'<path d="M{across(item.step):.1f} 12V{HIGH - 24}" stroke="{_COLOURS[item.severity]}">'
        f"<title>{_safe(finding_title(item))}</title></path>"
        for item in findings
        if item.step is not None
        and first <= item.step <= last
        and item.severity >= Severity.WARNING
    ][:_MARKED]
    bad = [
        f'<path d="M{across(gap.first) - 4:.1f} 4h8l-4 7z" fill="{_COLOURS[Severity.ERROR]}"/>'
        for gap in series.gaps()[:_MARKED]
    ]
    words = (
        (EDGE - 6, 20, "end", say(float(y.max()))),
        (EDGE - 6, HIGH - 24, "end", say(float(y.min()))),
        (EDGE, HIGH - 6, "start", f"step {first}"),
        (WIDE - 6, HIGH - 6, "end", f"{last}"),
    )
    texts = [
        f'<text x="{at}" y="{down}" text-anchor="{anchor}" fill="currentColor">{text}</text>'
        for at, down, anchor, text in words
    ]
    title = f"{name} from step {first} to {last}" + (", on a log scale" if log else "")
    return (
        f'<svg role="img" aria-label="{_safe(title)}" width="{WIDE}" height="{HIGH}" '
        f'viewBox="0 0 {WIDE} {HIGH}" font-size="11" style="max-width:100%">'
        f'<polyline points="{points}" fill="none" stroke="#1f6fc4" stroke-width="1.3"/>'
        f"{''.join([*marks, *bad, *texts])}</svg>"
    )


# Plots of a report through matplotlib (extra `plot`).

_LINE_COLOURS = {Severity.ERROR: "tab:red", Severity.WARNING: "tab:orange"}
_SPREAD = 100
"""From this ratio of largest to smallest on, the axis is logarithmic."""


def plot_curve(
    name: str,
    steps: Sequence[int],
    values: Sequence[float],
    findings: Sequence[Finding] = (),
    axes: Any = None,
) -> Any:
    """Draw a curve with its findings marked; values that are not finite are crosses at the top.

    Gives the matplotlib axes, those that were given or new ones.
    """
    if axes is None:
        _, axes = _pyplot().subplots()
    finite = [(at, value) for at, value in zip(steps, values, strict=True) if math.isfinite(value)]
    lost = [at for at, value in zip(steps, values, strict=True) if not math.isfinite(value)]
    # A gap, not a line across: NaN breaks a line of matplotlib's, and an infinity would stretch it.
    whole = [value if math.isfinite(value) else math.nan for value in values]
    axes.plot(list(steps), whole, linewidth=1, label=name)
    heights = [value for _, value in finite]
    if heights and min(heights) > 0 and max(heights) > _SPREAD * min(heights):
        axes.set_yscale("log")
    if lost:
        top = axes.get_xaxis_transform()  # steps along, share of the height up
        axes.plot(lost, [0.98] * len(lost), "x", color="tab:red", transform=top, label="not finite")
    _mark(axes, findings)
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    if lost:
        axes.legend()
    return axes


def _mark(axes: Any, findings: Sequence[Finding]) -> None:
    at_step: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.step is not None and finding.severity >= Severity.WARNING:
            at_step.setdefault(finding.step, []).append(finding)
    for step, found in at_step.items():
        worst = max(item.severity for item in found)
        codes = ", ".join(dict.fromkeys(item.code for item in found))
        axes.axvline(step, color=_LINE_COLOURS[worst], linewidth=0.8, linestyle="--")
        axes.annotate(
            codes,
            (step, 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            fontsize="small",
            va="bottom",
            ha="right",
        )


def _pyplot() -> Any:
    return import_optional("matplotlib.pyplot", user="report.plot", extra="plot")
