"""Tells the demo's story as it happens: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headway.sinks.page import Page

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

MARGIN = "   "
LINES = 6
"""Without a bar, a training is told in about so many lines."""


class Teller:
    """Writes the story onto a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._chapters = 0

    def chapter(self, title: str) -> None:
        """A heading."""
        self._chapters += 1
        self.page.gap()
        self.page.line((f"{self._chapters}  ", "cyan"), (title, "bold"))

    def say(self, text: str) -> None:
        """A paragraph."""
        self.page.line(text, first=MARGIN)

    def claim(self, text: str, *, holds: bool) -> None:
        """Something that was measured, and whether it is so."""
        mark = ("good", "bold green") if holds else ("error", "bold red")
        said = text if holds else f"did not hold: {text}"
        self.page.line(
            (self.page.mark(mark[0]), mark[1]), f" {said}", first=MARGIN, rest=MARGIN + "  "
        )

    def code(self, place: str, line: str) -> None:
        """A line of code, and where it stands."""
        self.page.line((place, "cyan"), first=MARGIN + "  ")
        self.page.line((line, "bold"), first=MARGIN + "    ")

    @contextmanager
    def training(
        self, steps: int, title: str = "training", *, quiet: bool = False
    ) -> Iterator[Callable[[int, float], None]]:
        """Shows how a training gets on, and what the guard says meanwhile.

        With `quiet` nothing of it stays on the page.
        """
        if self.page.live:
            with self._bar(steps, title, keep=not quiet) as tell:
                yield tell
            return
        every = max(steps // LINES, 1)

        def tell_line(step: int, loss: float) -> None:
            if not quiet and (step % every == 0 or step == steps - 1):
                self.say(f"step {step:3}  loss {loss:.3f}")

        with self._listening():
            yield tell_line

    @contextmanager
    def _bar(self, steps: int, title: str, *, keep: bool) -> Iterator[Callable[[int, float], None]]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        words = TextColumn("{task.description}", markup=False)
        numbers = TextColumn("{task.fields[told]}", markup=False)
        bar = Progress(
            TextColumn("  "),
            words,
            BarColumn(30),
            numbers,
            TimeElapsedColumn(),
            console=self.page.console,
            transient=not keep,
        )
        with bar, self._listening():
            yield _moves(bar, bar.add_task(title, total=steps, told=""))

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """The guard speaks through its logger: bring its words into the story."""
        logger = logging.getLogger("headway")
        ear = _Ear(self)
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(ear)
        try:
            yield
        finally:
            logger.removeHandler(ear)
            logger.propagate = propagate


def _moves(bar: Progress, task: TaskID) -> Callable[[int, float], None]:
    def tell(step: int, loss: float) -> None:
        bar.update(task, completed=step + 1, told=f"step {step}  loss {loss:.3f}")

    return tell


class _Ear(logging.Handler):
    def __init__(self, teller: Teller) -> None:
        super().__init__(logging.WARNING)
        self._teller = teller

    def emit(self, record: logging.LogRecord) -> None:
        page = self._teller.page
        page.line(
            (page.mark("warning"), "yellow"),
            (f" {record.getMessage()}", "yellow"),
            first=MARGIN,
            rest=MARGIN + "  ",
        )
