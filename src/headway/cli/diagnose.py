"""`headway diagnose PATH…`"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli import options
from headway.cli.exits import tell
from headway.cli.waiting import waiting
from headway.config import Settings
from headway.errors import UnreadableInput

if TYPE_CHECKING:
    from headway.report import Report

Read = list[tuple[Path, "Report"]]


@click.command()
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@options.output_format("text", "json", "github", "sarif")
@options.which_checks
@options.fail_on
@options.config_file
@click.option(
    "-v", "--verbose", is_flag=True, help="Show all of it: every remedy, every check not run."
)
def command(
    paths: tuple[Path, ...],
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    config: Path | None,
    verbose: bool,
) -> int:
    """Say what went wrong in a run, when and why.

    PATH is a log, a checkpoint, or a folder of them: its logs are joined, the
    settings beside them are read, and its checkpoints are looked through.
    Several may be given: each is judged for itself.

    \b
    --format json writes one object for one PATH, and for several a list of
    such objects, each with its "path".
    """
    settings = options.settings_from(config, select=select, ignore=ignore, fail_on=fail_on)
    read, unread = _read(paths, settings)
    for error in unread:
        tell(str(error))
    if read:
        _write(read, form, alone=len(paths) == 1, verbose=verbose)
    if unread:
        return UnreadableInput.exit_code
    return int(any(report.fails(settings.fail_on) for _, report in read))


def _read(paths: Sequence[Path], settings: Settings) -> tuple[Read, list[UnreadableInput]]:
    """What could be read, and why the rest could not: one bad path must not hide the others."""
    from headway.postmortem.diagnose import diagnose

    read: Read = []
    unread: list[UnreadableInput] = []
    for path in paths:
        try:
            with waiting(f"reading {path}"):
                read.append((path, diagnose(path, settings=settings)))
        except UnreadableInput as error:
            unread.append(error)
    return read, unread


def _write(read: Read, form: str, *, alone: bool, verbose: bool) -> None:
    if form == "json":
        click.echo(read[0][1].to_json() if alone else _json_list(read))
    elif form == "github":
        from headway.sinks.github import commands

        for _, report in read:
            for line in commands(report):
                click.echo(line)
    elif form == "sarif":
        from headway.sinks.sarif import document

        click.echo(json.dumps(document(read), indent=2))
    else:
        _write_text(read, alone=alone, verbose=verbose)


def _json_list(read: Read) -> str:
    items = [{"path": str(path), **report.to_dict()} for path, report in read]
    return json.dumps(items, indent=2, allow_nan=False, default=str)


def _write_text(read: Read, *, alone: bool, verbose: bool) -> None:
    from headway.cli.pictures import draw
    from headway.sinks.console import ReportPage
    from headway.sinks.page import Page

    page = Page(sys.stdout)
    if not alone:
        sick = sum(report.verdict != "healthy" for _, report in read)
        page.line(f"headway: findings in {sick} of {len(read)} runs")
    for path, report in read:
        if not alone:
            page.gap()
        ReportPage(page, verbose=verbose).write(
            report,
            "headway" if alone else str(path),
            picture=lambda on, told=report: draw(on, told, verbose=verbose),  # type: ignore[misc]
        )
    page.next(_next(read, verbose=verbose))


def _next(read: Read, *, verbose: bool) -> str:
    for path, report in read:
        good = [item for item in report.sources if item.get("clean")]
        if good and any(item.get("clean") is False for item in report.sources):
            return f"headway scan {shlex.quote(str(path))} --last-good"
        if report.causes:
            return f"headway explain {report.causes[0].code}"
    if any(report.not_run for _, report in read) and not verbose:
        return f"headway diagnose --verbose {' '.join(shlex.quote(str(path)) for path, _ in read)}"
    return "headway checks"
