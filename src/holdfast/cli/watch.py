"""`holdfast watch RUN`"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.exits import INTERRUPTED
from holdfast.errors import UnreadableInput

if TYPE_CHECKING:
    from holdfast.cli.watch_page import Watched
    from holdfast.sinks.page import Page
    from holdfast.sources.follow import Follow


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
    from holdfast.cli.watch_page import Watched
    from holdfast.sinks.page import Page
    from holdfast.sources.follow import Follow

    follow, page = Follow(run), Page()
    watched = Watched(run)
    try:
        if page.live and not once:
            _show(follow, watched, page, every)
        else:
            _print(follow, watched, page, every, once)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _look(follow: Follow, watched: Watched) -> bool:
    """Whether anything new has come."""
    records = follow.read()
    for record in records:
        watched.feed(record)
    return bool(records)


def _show(follow: Follow, watched: Watched, page: Page, every: float) -> None:
    from rich.live import Live

    with Live(console=page.console, auto_refresh=False) as live:
        while True:
            more = _look(follow, watched)
            ended = watched.over and not more and not follow.waiting
            if ended:
                watched.finish()
            live.update(watched.picture(page), refresh=True)
            if ended:
                return
            if not more:
                time.sleep(every)


def _print(follow: Follow, watched: Watched, page: Page, every: float, once: bool) -> None:
    while True:
        more = _look(follow, watched)
        ended = not more and (once or watched.over) and not follow.waiting
        if ended:
            watched.finish()
        for line in watched.news():
            page.line(line, rest="  ")
        page.console.file.flush()
        if ended:
            if not watched.begun:
                raise UnreadableInput(f"{follow.path} holds no run yet: there is no run.json")
            return
        if not more and not once:
            time.sleep(every)
