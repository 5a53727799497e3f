"""`headway watch RUN`"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli.exits import INTERRUPTED
from headway.errors import UnreadableInput

if TYPE_CHECKING:
    from headway.cli.watch_page import Watched
    from headway.sinks.page import Page
    from headway.sources.growing.records import GrowingRun

AT_ONCE = 20_000
"""Records taken at one look: a long run that is read for the first time is seen to come."""


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@click.option("--once", is_flag=True, help="Show what there is now, and end.")
def command(run: Path, every: float, once: bool) -> int:
    """Follow a run in the terminal while it trains.

    RUN is a run directory: what `Guard(run_dir=…)` writes. Shows the loss, the
    gradient norm, what was found and what the guard did. Ends with the run;
    Ctrl-C ends it before. Plain lines where the output is no terminal.
    """
    from headway.cli.watch_page import Watched
    from headway.sinks.page import Page
    from headway.sources.growing.records import PATIENCE, GrowingRun

    page, watched = Page(), Watched(run)
    growing = GrowingRun(run, patience=0.0 if once else PATIENCE)
    try:
        if page.live and not once:
            _show(growing, watched, page, every)
        else:
            _print(growing, watched, page, every, once)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _look(growing: GrowingRun, watched: Watched) -> bool:
    """Whether anything new has come."""
    if not growing.path.is_dir():
        raise UnreadableInput(f"{growing.path} is not a run directory")
    count = 0
    for record in islice(growing.records(), AT_ONCE):
        watched.feed(record)
        count += 1
    return count > 0


def _show(growing: GrowingRun, watched: Watched, page: Page, every: float) -> None:
    from rich.live import Live

    with Live(console=page.console, auto_refresh=False) as live:
        while True:
            more = _look(growing, watched)
            ended = watched.over and not more and not growing.waiting
            if ended:
                watched.finish()
            live.update(watched.picture(page), refresh=True)
            if ended:
                return
            if not more:
                time.sleep(every)


def _print(growing: GrowingRun, watched: Watched, page: Page, every: float, once: bool) -> None:
    while True:
        more = _look(growing, watched)
        ended = not more and (once or watched.over) and not growing.waiting
        if ended:
            watched.finish()
        for line in watched.news():
            page.line(line, rest="  ")
        page.console.file.flush()
        if ended:
            if not watched.begun:
                raise UnreadableInput(f"{growing.path} holds no run yet: there is no run.json")
            return
        if not more and not once:
            time.sleep(every)
