"""A bar for work that is measured in bytes and takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headway.cli.waiting import PATIENCE_SECONDS


@contextmanager
def bar() -> Iterator[Callable[..., Any] | None]:
    """Something to call with (bytes done, bytes in all); None where nobody watches.

    Only on a terminal, beside the output, and only after a second.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from headway.sinks.page import Page

    shown = Progress(
        TextColumn("scanning"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Page(sys.stderr).console,
        transient=True,
    )
    task = shown.add_task("scanning", total=None)
    began = time.monotonic()
    started = False

    def told(done: int, total: int | None = None, *_: Any) -> None:
        nonlocal started
        if not started and time.monotonic() - began > PATIENCE_SECONDS:
            started = True
            shown.start()
        shown.update(task, completed=done, total=total)

    try:
        yield told
    finally:
        if started:
            shown.stop()
