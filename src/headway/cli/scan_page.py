"""What `headway scan` shows a person: verdict, checkpoints, worst tensors, the last clean one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.cli.pictures import checkpoints
from headway.report import Report
from headway.sinks.console import ReportPage
from headway.sinks.page import Page


def write(report: Report, paths: Sequence[Path], *, verbose: bool) -> None:
    """The whole page."""
    page = Page(sys.stdout)
    ReportPage(page, verbose=verbose).write(
        report, "headway", picture=lambda on: checkpoints(on, report.sources, verbose=verbose)
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
        return f"headway scan {typed} --last-good"
    if report.causes:
        return f"headway explain {report.causes[0].code}"
    folder = next((path for path in paths if path.is_dir()), paths[0].parent)
    return f"headway diagnose {shlex.quote(str(folder))}"
