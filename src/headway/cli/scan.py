"""`headway scan PATH…`"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headway.cli import options
from headway.cli.exit_codes import print_message
from headway.cli.options import FORMATS
from headway.config import Settings
from headway.errors import UnreadableInput
from headway.output.console import ReportPrinter, write_checkpoint_table
from headway.output.display_text import shell_quote
from headway.output.terminal import TerminalPage, progress_bar
from headway.report import Report


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=options.RunPath())
@options.output_format(*FORMATS)
@options.which_checks
@options.fail_on()
@options.known_findings
@options.config_file
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="Accept this class or function in pickles, such as my_package.Config or 'my_package.*'.",
)
@click.option(
    "--last-good",
    is_flag=True,
    help="Print only the path of the last clean checkpoint; exit 1 if there is none.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every checkpoint and remedy.")
def command(
    paths: tuple[Path, ...],
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    baseline: str | None,
    write_baseline: bool,
    config: Path | None,
    allow: tuple[str, ...],
    last_good: bool,
    verbose: bool,
) -> int:
    """Scan checkpoints for NaN, damage and changes; find the last good one.

    PATH is a checkpoint, or a folder whose checkpoints are scanned in the order
    of their steps and compared. Nothing in the files is executed, and torch is
    not needed.

    \b
    Resume from the last good checkpoint:
      python train.py --resume "$(headway scan RUN --last-good)"
    """
    settings = options.settings_from(
        config,
        select=select,
        ignore=ignore,
        fail_on=fail_on,
        baseline=baseline,
        distrust=_inside_of(paths),
    )
    settings = replace(settings, allow=(*settings.allow, *allow))
    from headway.checkpoints.folder_access import describe_left_out, scanning
    from headway.postmortem.scan import checkpoints_at, scan_paths
    from headway.postmortem.scan import last_good as last_good_of

    found: list[Path] = []
    unread: list[UnreadableInput] = []
    with scanning(paths) as links:
        for path in paths:
            try:
                found += checkpoints_at(path, links)
            except UnreadableInput as error:
                unread.append(error)
        for problem in unread:
            print_message(str(problem))
        if not found:
            return UnreadableInput.exit_code
        with progress_bar() as progress:
            report = scan_paths(
                list(dict.fromkeys(found)), settings, progress=progress, links=links
            )
    if links and (last_good or form != "text"):  # the page has it among its notes
        print_message(describe_left_out(links))
    if last_good:
        return _last_good(last_good_of(report), paths)
    [report] = options.suppress_known([report], settings, write=write_baseline and not unread)
    _write(report, form, paths, settings, verbose=verbose)
    if unread:
        return UnreadableInput.exit_code
    return int(report.fails(settings.fail_on))


def _inside_of(paths: Sequence[Path]) -> Callable[[Path], bool]:
    """Settings that come with the files must not decide what is reported about them."""
    scanned = [path.resolve() for path in paths if path.is_dir()]

    def distrust(file: Path) -> bool:
        inside = any(file.is_relative_to(folder) for folder in scanned)
        if inside:
            print_message(
                f"{file} is inside a scanned folder and is ignored; --config {file} uses it"
            )
        return inside

    return distrust


def _last_good(path: Path | None, paths: Sequence[Path]) -> int:
    if path is None:
        print_message(f"no checkpoint in {', '.join(str(item) for item in paths)} is clean")
        return 1
    click.echo(str(path))
    return 0


def _write(
    report: Report, form: str, paths: Sequence[Path], settings: Settings, *, verbose: bool
) -> None:
    if form == "text":
        write_scan_page(report, paths, verbose=verbose)
    else:
        options.print_reports(form, [(paths[0], report)], settings=settings)


def write_scan_page(report: Report, paths: Sequence[Path], *, verbose: bool) -> None:
    """Print the verdict, the checkpoints, findings and the last clean checkpoint."""
    page = TerminalPage(sys.stdout)
    ReportPrinter(page, verbose=verbose).write(
        report,
        "headway",
        picture=lambda on: write_checkpoint_table(on, report.sources, verbose=verbose),
    )
    _last_clean(page, report.sources)
    page.next(_next_command(report, paths))


def _last_clean(page: TerminalPage, checkpoints: Sequence[Mapping[str, Any]]) -> None:
    clean = [item for item in checkpoints if item["clean"]]
    if len(clean) == len(checkpoints):
        return
    page.gap()
    if not clean:
        none = "It is not clean." if len(checkpoints) == 1 else "No checkpoint is clean."
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


def _next_command(report: Report, paths: Sequence[Path]) -> str:
    typed = " ".join(shell_quote(str(path)) for path in paths)
    clean = [item for item in report.sources if item["clean"]]
    if clean and len(clean) < len(report.sources):
        return f"headway scan {typed} --last-good"
    if report.causes:
        return f"headway explain {report.causes[0].code}"
    folder = next((path for path in paths if path.is_dir()), paths[0].parent)
    return f"headway diagnose {shell_quote(str(folder))}"
