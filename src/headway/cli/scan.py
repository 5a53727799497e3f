"""`headway scan PATH…`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli import options
from headway.cli.bar import bar
from headway.cli.exits import tell
from headway.errors import UnreadableInput

if TYPE_CHECKING:
    from headway.report import Report


@click.command()
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@options.output_format("text", "json", "github", "sarif")
@options.which_checks
@options.fail_on
@options.config_file
@click.option(
    "--last-good",
    is_flag=True,
    help="Print nothing but the path of the last clean checkpoint; exit 1 if there is none.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show all of it: every checkpoint and remedy.")
def command(
    paths: tuple[Path, ...],
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    config: Path | None,
    last_good: bool,
    verbose: bool,
) -> int:
    """Look through checkpoints: NaN, damage, what changed, which one is the last good.

    PATH is a checkpoint, or a folder whose checkpoints are scanned in the order
    of their steps and compared. Nothing in the files is executed, and torch is
    not needed.

    \b
    Go on from the last good one:
      python train.py --resume "$(headway scan RUN --last-good)"
    """
    settings = options.settings_from(config, select=select, ignore=ignore, fail_on=fail_on)
    from headway.postmortem.scan import checkpoints_at, look_through
    from headway.postmortem.scan import last_good as last_good_of

    found: list[Path] = []
    unread: list[UnreadableInput] = []
    for path in paths:
        try:
            found += checkpoints_at(path)
        except UnreadableInput as error:
            unread.append(error)
    for problem in unread:
        tell(str(problem))
    if not found:
        return UnreadableInput.exit_code
    with bar() as progress:
        report = look_through(list(dict.fromkeys(found)), settings, progress=progress)
    if last_good:
        return _last_good(last_good_of(report), paths)
    _write(report, form, paths, verbose=verbose)
    if unread:
        return UnreadableInput.exit_code
    return int(report.fails(settings.fail_on))


def _last_good(path: Path | None, paths: Sequence[Path]) -> int:
    if path is None:
        tell(f"no checkpoint in {', '.join(str(item) for item in paths)} is clean")
        return 1
    click.echo(str(path))
    return 0


def _write(report: Report, form: str, paths: Sequence[Path], *, verbose: bool) -> None:
    if form == "json":
        click.echo(report.to_json())
    elif form == "github":
        from headway.sinks.github import commands

        for line in commands(report):
            click.echo(line)
    elif form == "sarif":
        from headway.sinks.sarif import document

        click.echo(json.dumps(document([(paths[0], report)]), indent=2))
    else:
        from headway.cli.scan_page import write

        write(report, paths, verbose=verbose)
