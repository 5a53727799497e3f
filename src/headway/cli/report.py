"""`headway report RUN -o FILE`"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from headway.cli import options
from headway.output.terminal import spinner


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    default="headway-report.html",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the page.",
)
@options.which_checks
@options.fail_on
@options.config_file
def command(
    run: Path,
    output: Path,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    config: Path | None,
) -> int:
    """Write what diagnose says, with charts, as one HTML file to send around.

    RUN is anything `headway diagnose` reads. The file needs no network and
    nothing beside it; it opens in any browser, and prints.

    \b
    Exit code: 0 the page was written, whatever is on it; 1 only where --fail-on
    is given and something of that severity was found; 2 the run cannot be read
    or the page not be written.
    """
    from headway.core.numbers import say_bytes
    from headway.output.console import verdict_line
    from headway.output.terminal import TerminalPage
    from headway.postmortem.diagnose import diagnose

    settings = options.settings_from(config, select=select, ignore=ignore, fail_on=fail_on)
    with spinner(f"reading {run}"):
        report = diagnose(run, settings=settings)
    with spinner(f"drawing {run}"):
        report.to_html(output)
    page = TerminalPage(sys.stdout)
    page.line(*verdict_line(report), rest="  ")
    page.line(f"written to {output} ({say_bytes(output.stat().st_size)})", rest="  ")
    page.next(_next(output))
    return int(fail_on is not None and report.fails(fail_on))


def _next(output: Path) -> str:
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    return f"{opener} {shlex.quote(str(output))}"
