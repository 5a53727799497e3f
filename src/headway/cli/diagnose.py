"""`headway diagnose PATH…`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli import options
from headway.cli.exit_codes import print_message
from headway.cli.options import FORMATS
from headway.config import Settings
from headway.core.findings import Severity
from headway.core.numbers import say
from headway.errors import UnreadableInput
from headway.output.console import MIN_CURVE_POINTS, write_checkpoint_table
from headway.output.display_text import BAD, BARS, MARK, shell_quote, sparkline
from headway.output.terminal import TerminalPage, spinner

if TYPE_CHECKING:
    from headway.report import Report


Read = list[tuple[Path, "Report"]]


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=options.RunPath())
@options.output_format(*FORMATS)
@options.which_checks
@options.fail_on()
@options.known_findings
@options.config_file
@click.option(
    "-v", "--verbose", is_flag=True, help="Show every remedy and every check that did not run."
)
def command(
    paths: tuple[Path, ...],
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    baseline: str | None,
    write_baseline: bool,
    config: Path | None,
    verbose: bool,
) -> int:
    """Report what went wrong in a run, when and why.

    PATH is a log, a checkpoint, or a folder of them. The logs of a folder are
    joined, its settings files are read and its checkpoints scanned. With
    several PATHs, each gets its own report.

    \b
    --format json writes an object for one PATH, and for several PATHs a list
    of such objects, each with its "path".
    """
    settings = options.settings_from(
        config, select=select, ignore=ignore, fail_on=fail_on, baseline=baseline
    )
    read, unread = _read(paths, settings)
    known = options.suppress_known(
        [report for _, report in read], settings, write=write_baseline and not unread
    )
    read = [(path, report) for (path, _), report in zip(read, known, strict=True)]
    for error in unread:
        print_message(str(error))
    if read:
        _write(read, form, settings, alone=len(paths) == 1, verbose=verbose)
    if unread:
        return UnreadableInput.exit_code
    return int(any(report.fails(settings.fail_on) for _, report in read))


def _read(paths: Sequence[Path], settings: Settings) -> tuple[Read, list[UnreadableInput]]:
    """The reports, and the errors of the paths that cannot be read."""
    from headway.logs.log_file import share_read
    from headway.postmortem.diagnose import diagnose

    read: Read = []
    unread: list[UnreadableInput] = []
    for number, path in enumerate(paths, 1):
        of = f" {number} of {len(paths)}:" if len(paths) > 1 else ""
        try:
            alone = share_read if path.is_file() else None
            with spinner(f"reading{of} {path}", share=alone):
                read.append((path, diagnose(path, settings=settings)))
        except UnreadableInput as error:
            unread.append(error)
    return read, unread


def _write(read: Read, form: str, settings: Settings, *, alone: bool, verbose: bool) -> None:
    if form == "text":
        _write_text(read, alone=alone, verbose=verbose)
    else:
        options.print_reports(form, read, listed=not alone, settings=settings)


def _write_text(read: Read, *, alone: bool, verbose: bool) -> None:
    from headway.output.console import ReportPrinter
    from headway.output.terminal import TerminalPage

    page = TerminalPage(sys.stdout)
    if not alone:
        bad = sum(report.worst >= Severity.WARNING for _, report in read)
        page.line(f"headway: findings in {bad} of {len(read)} runs")
    for path, report in read:
        if not alone:
            page.gap()
        ReportPrinter(page, verbose=verbose).write(
            report,
            "headway" if alone else str(path),
            picture=lambda on, report=report: draw_run(on, report, verbose=verbose),  # type: ignore[misc]
        )
    page.next(_next_command(read, verbose=verbose))


def _next_command(read: Read, *, verbose: bool) -> str:
    for path, report in read:
        good = [item for item in report.sources if item.get("clean")]
        if good and any(item.get("clean") is False for item in report.sources):
            return f"headway scan {shell_quote(str(path))} --last-good"
        if report.causes:
            return f"headway explain {report.causes[0].code}"
    if any(report.not_run for _, report in read) and not verbose:
        return f"headway diagnose --verbose {' '.join(shell_quote(str(path)) for path, _ in read)}"
    return "headway checks"


def draw_run(page: TerminalPage, report: Report, *, verbose: bool) -> None:
    """The loss curve and the table of checkpoints, if there are any."""
    if report.curve is not None and len(report.curve[0]) >= MIN_CURVE_POINTS:
        _draw_loss_curve(page, report)
    saved = [item for item in report.sources if "clean" in item]
    if saved:
        write_checkpoint_table(page, saved, verbose=verbose)


def _draw_loss_curve(page: TerminalPage, report: Report) -> None:
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
        label, before = f"step {onset}", 6 + len(mark) - 1
        if before + 2 + len(label) <= page.width:
            page.raw(" " * before, (mark.lstrip(), "bold red"), f" {label}")
        else:  # no room on the right
            page.raw(" " * (before - len(label) - 1), f"{label} ", (mark.lstrip(), "bold red"))
    page.line(
        (f"      {say(values[0])} at step {steps[0]} to {say(values[-1])} at {steps[-1]}", "dim")
    )
