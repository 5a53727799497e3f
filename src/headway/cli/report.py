"""`headway report RUN -o FILE`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from headway.cli import options
from headway.output.display_text import shell_quote
from headway.output.terminal import spinner


@click.command()
@click.argument("run", metavar="RUN", type=options.RunPath())
@click.option(
    "-o",
    "--output",
    default="headway-report.html",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to FILE.",
)
@options.which_checks
@options.fail_on(default="never")
@options.config_file
def command(
    run: Path,
    output: Path,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    config: Path | None,
) -> int:
    """Write a diagnosis with charts as a single HTML file.

    RUN is anything `headway diagnose` reads. The file is self-contained, needs
    no network, opens in any browser and can be printed.

    \b
    Exit codes: 0 the file was written; 1 --fail-on is given and there are such
    findings; 2 the run cannot be read or the file cannot be written.
    """
    from headway.core.numbers import say_bytes
    from headway.logs.log_file import share_read
    from headway.output.console import verdict_line
    from headway.output.terminal import TerminalPage
    from headway.postmortem.diagnose import diagnose

    settings = options.settings_from(config, select=select, ignore=ignore, fail_on=fail_on)
    alone = share_read if run.is_file() else None
    with spinner(f"step 1 of 2: reading {run}", share=alone):
        [report] = options.suppress_known([diagnose(run, settings=settings)], settings)
    with spinner(f"step 2 of 2: drawing the charts of {run}"):
        report.to_html(output)
    page = TerminalPage(sys.stdout)
    page.line(*verdict_line(report), rest="  ")
    page.line(f"written to {output} ({say_bytes(output.stat().st_size)})", rest="  ")
    page.next(_next(output))
    return int(fail_on is not None and report.fails(fail_on))


def _next(output: Path) -> str:
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    return f"{opener} {shell_quote(str(output))}"
