"""Reports and guards as Jupyter shows them: escaped HTML without scripts.

Colours are named once and readable on light and dark pages; the rest is the notebook's own style.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from headway.core.findings import Finding, Severity
from headway.output.console import coverage_line, verdict_line
from headway.output.display_text import clean
from headway.output.view import ReportView, format_where

SHOWN = 20
"""Findings in the table; the rest are counted."""
_COLOURS = {Severity.ERROR: "#d33", Severity.WARNING: "#b80", Severity.INFO: "#38a"}
_CELL = "text-align:left;vertical-align:top;padding:2px 8px"


def report_html(report: ReportView) -> str:
    """Verdict, coverage, findings with their place and what to do."""
    said = "".join(part if isinstance(part, str) else part[0] for part in verdict_line(report))
    return _block(said, [coverage_line(report)], report.findings)


def guard_html(
    *, steps: int, findings: Sequence[Finding], actions: Sequence[Any], run_dir: Any, closed: bool
) -> str:
    """What a guard has seen and done so far."""
    state = "closed" if closed else "watching"
    held = f"{len(actions)} actions" if len(actions) != 1 else "1 action"
    lines = [f"last action: {actions[-1].rung.value}: {actions[-1].reason}"] if actions else []
    if run_dir is not None:
        lines.append(f"run directory: {run_dir}")
    return _block(f"headway guard: {state}, {steps} steps, {held}", lines, findings)


def _block(head: str, lines: Iterable[str], findings: Sequence[Finding]) -> str:
    parts = [f"<div><b>{_safe(head)}</b>"]
    parts += [f'<div style="opacity:.75">{_safe(line)}</div>' for line in lines]
    # The worst first, and among equals the earliest.
    ordered = sorted(findings, key=lambda item: -item.severity)
    if ordered:
        titles = "".join(
            f'<th style="{_CELL}">{title}</th>' for title in ("", "step", "finding", "what to do")
        )
        rows = "".join(map(_row, ordered[:SHOWN]))
        parts.append(f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>")
    if len(ordered) > SHOWN:
        parts.append(f"<div>and {len(ordered) - SHOWN} more</div>")
    return "".join([*parts, "</div>"])


def _row(finding: Finding) -> str:
    place = format_where(finding.where)
    what = f"<b>{_safe(f'{finding.code} {finding.name}')}</b><br>{_safe(finding.message)}"
    if place and place not in finding.message:
        what += f"<br><code>{_safe(place)}</code>"
    cures = "<br>".join(
        _safe(item.text + (" (tested: cured)" if item.tested and item.cured else ""))
        for item in finding.remedies
    )
    level = f'<span style="color:{_COLOURS[finding.severity]}">{finding.severity}</span>'
    step = "" if finding.step is None else str(finding.step)
    cells = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in (level, step, what, cures))
    return f"<tr>{cells}</tr>"


def _safe(text: object) -> str:
    return escape(clean(text))
