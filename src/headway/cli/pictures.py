"""What stands between a verdict and its causes: the curve of the loss, the table of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.core.findings import Severity
from headway.core.numbers import say, say_bytes
from headway.sinks.page import Page
from headway.sinks.sparkline import BAD, BARS, MARK, sparkline

if TYPE_CHECKING:
    from headway.report import Report

SHOWN = 12
"""Checkpoints in the table; the last ones, and all that are not clean up to as many again."""
LEAST_POINTS = 8
"""A curve of fewer says nothing."""
_STYLES = {"clean": "green", "empty": "yellow"}


def draw(page: Page, report: Report, *, verbose: bool) -> None:
    """Whatever there is to draw of a run that was read."""
    if report.curve is not None and len(report.curve[0]) >= LEAST_POINTS:
        _curve(page, report)
    saved = [item for item in report.sources if "clean" in item]
    if saved:
        checkpoints(page, saved, verbose=verbose)


def _curve(page: Page, report: Report) -> None:
    assert report.curve is not None
    steps, values = report.curve
    root = report.causes[0].root if report.causes else None
    onset = root.step if root is not None and root.severity > Severity.INFO else None
    plain = not page.can_show(BARS + BAD + MARK)
    line, mark = sparkline(steps, values, width=page.width - 6, onset=onset, plain=plain)
    if not line:
        return
    page.gap()
    page.line(("loss  ", "dim"), line)
    if mark:
        page.line((mark.lstrip(), "bold red"), f" step {onset}", first=" " * (6 + len(mark) - 1))
    page.line(
        (f"      {say(values[0])} at step {steps[0]} to {say(values[-1])} at {steps[-1]}", "dim")
    )


def checkpoints(page: Page, found: Sequence[Mapping[str, Any]], *, verbose: bool) -> None:
    """A table of the checkpoints that were looked through."""
    shown = list(found)
    if not verbose and len(shown) > SHOWN:
        bad = [item for item in shown[:-SHOWN] if not item["clean"]][:SHOWN]
        shown = [*bad, *shown[-SHOWN:]]
    common = _common([item["path"] for item in shown])
    page.gap()
    head = f"{'step':>9}  {'tensors':>8}  {'size':>10}  {'NaN/Inf':>9}  {'':<12}  checkpoint"
    page.line((head, "dim"))
    for item in shown:
        step = "-" if item["step"] is None else str(item["step"])
        numbers = (
            f"{step:>9}  {item['tensors']:>8}  {say_bytes(item['bytes']):>10}  "
            f"{item['nonfinite']:>9}  "
        )
        mark = page.mark("good" if item["clean"] else "error")
        style = _STYLES.get(item["verdict"], "bold red")
        name = item["path"][len(common) :]
        # A long path stands in a line of its own, near the margin.
        margin = " " * (4 if len(name) > page.width - 60 else 60)
        page.line(numbers, (f"{mark} {item['verdict']:<10}", style), f"  {name}", rest=margin)
    if len(shown) < len(found):
        page.line((f"and {len(found) - len(shown)} more; --verbose lists them", "dim"))


def _common(paths: Sequence[str]) -> str:
    """The folder all of them lie in, which the table need not repeat."""
    folders = [path.rpartition(os.sep)[0] for path in paths]
    try:
        common = os.path.commonpath(folders) if all(folders) else ""
    except ValueError:  # on several drives
        return ""
    return common.rstrip(os.sep) + os.sep if common else ""
