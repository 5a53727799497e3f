"""What `holdfast scan` shows a person: verdict, checkpoints, worst tensors, the last clean one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.cli.pictures import checkpoints
from holdfast.report import Report
from holdfast.sinks.console import ReportPage
from holdfast.sinks.page import Page


def write(report: Report, paths: Sequence[Path], *, verbose: bool) -> None:
    """The whole page."""
    page = Page(sys.stdout)
    ReportPage(page, verbose=verbose).write(
        report, "holdfast", picture=lambda on: checkpoints(on, report.sources, verbose=verbose)
    )
    _last_clean(page, report.sources)
    page.next(_next(report, paths))


def _last_clean(page: Page, checkpoints: Sequence[Mapping[str, Any]]) -> None:
    clean = [item for item in checkpoints if item["clean"]]
    if len(clean) == len(checkpoints):
        return
    page.gap()
    if not clean:
        none = "It is not clean." if len(checkpoints) == 1 else "None of them is clean."
        page.line((none, "bold"))
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
