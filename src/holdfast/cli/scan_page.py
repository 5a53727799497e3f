"""What `holdfast scan` shows a person: verdict, checkpoints, worst tensors, the last clean one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.numbers import say_bytes
from holdfast.report import Report
from holdfast.sinks.console import ReportPage
from holdfast.sinks.page import Page

SHOWN = 12
"""Checkpoints in the table; the last ones, and all that are not clean up to as many again."""
_STYLES = {"clean": "green", "empty": "yellow"}


def write(report: Report, paths: Sequence[Path], *, verbose: bool) -> None:
    """The whole page."""
    page = Page(sys.stdout)
    ReportPage(page, verbose=verbose).write(
        report, "holdfast", picture=lambda on: _table(on, report.sources, verbose=verbose)
    )
    _last_clean(page, report.sources)
    page.next(_next(report, paths))


def _table(page: Page, checkpoints: Sequence[Mapping[str, Any]], *, verbose: bool) -> None:
    shown = list(checkpoints)
    if not verbose and len(shown) > SHOWN:
        bad = [item for item in shown[:-SHOWN] if not item["clean"]][:SHOWN]
        shown = [*bad, *shown[-SHOWN:]]
    page.gap()
    page.line((f"{'step':>9}  {'tensors':>8}  {'size':>10}  {'NaN/Inf':>10}  checkpoint", "dim"))
    for item in shown:
        step = "-" if item["step"] is None else str(item["step"])
        numbers = (
            f"{step:>9}  {item['tensors']:>8}  {say_bytes(item['bytes']):>10}  "
            f"{item['nonfinite']:>10}  "
        )
        mark = page.mark("good" if item["clean"] else "error")
        style = _STYLES.get(item["verdict"], "bold red")
        page.line(numbers, item["path"], "  ", (f"{mark} {item['verdict']}", style), rest=" " * 45)
    if len(shown) < len(checkpoints):
        page.line((f"and {len(checkpoints) - len(shown)} more; --verbose lists them", "dim"))


def _last_clean(page: Page, checkpoints: Sequence[Mapping[str, Any]]) -> None:
    clean = [item for item in checkpoints if item["clean"]]
    if len(clean) == len(checkpoints):
        return
    page.gap()
    if not clean:
        page.line(("None of them is clean.", "bold"))
        return
    last = clean[-1]
    step = "" if last["step"] is None else f"step {last['step']}; "
    page.line(
        "Last clean: ",
        (last["path"], "bold green"),
        f" ({step}{last['tensors']} tensors, all finite)",
        rest="  ",
    )


def _next(report: Report, paths: Sequence[Path]) -> str:
    typed = " ".join(shlex.quote(str(path)) for path in paths)
    clean = [item for item in report.sources if item["clean"]]
    if clean and len(clean) < len(report.sources):
        return f"holdfast scan {typed} --last-good"
    if report.causes:
        return f"holdfast explain {report.causes[0].code}"
    folder = next((path for path in paths if path.is_dir()), paths[0].parent)
    return f"holdfast diagnose {shlex.quote(str(folder))}"
