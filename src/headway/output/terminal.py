"""Terminal output: a page of wrapped and coloured text, a spinner and a progress bar.

Imports rich only when it prints.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from headway.output.display_text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


PROGRESS_DELAY_SECONDS = 1.0


@contextmanager
def spinner(for_what: str) -> Iterator[None]:
    """Show a spinner on a terminal while work takes longer than a second."""
    if not sys.stderr.isatty():
        yield
        return
    from headway.output.display_text import clean

    status = TerminalPage(sys.stderr).console.status(clean(for_what))
    timer = threading.Timer(PROGRESS_DELAY_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


@contextmanager
def progress_bar() -> Iterator[Callable[..., Any] | None]:
    """Yields a function to call with (bytes done, total bytes); None without a terminal.

    The bar is drawn on stderr after a second.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    shown = Progress(
        TextColumn("scanning"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=TerminalPage(sys.stderr).console,
        transient=True,
    )
    task = shown.add_task("scanning", total=None)
    began = time.monotonic()
    started = False

    def update(done: int, total: int | None = None, *_: Any) -> None:
        nonlocal started
        if not started and time.monotonic() - began > PROGRESS_DELAY_SECONDS:
            started = True
            shown.start()
        shown.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if started:
            shown.stop()


# Colour is used only on a terminal and without `NO_COLOR`. Words are never broken, so that a path
# can be copied from a log. Printed text is never interpreted as markup.

StyledText: TypeAlias = str | tuple[str, str]
"""Text, or (text, style)."""

WIDTH = 80
"""Width of output to a file or a pipe."""
WIDEST = 100
"""Maximum width: longer lines are hard to read."""
MARKS = {"error": "✗", "warning": "!", "info": "·", "good": "✓", "do": "→"}
PLAIN_MARKS = {"error": "x", "warning": "!", "info": "-", "good": "+", "do": ">"}


class TerminalPage:
    """Prints wrapped, indented and styled text."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.console = _console(file or sys.stdout)
        self.width = min(self.console.width, WIDEST)
        self._begun = False
        self._marks = MARKS if _can_show(self.console, "".join(MARKS.values())) else PLAIN_MARKS

    @property
    def live(self) -> bool:
        """Whether the output is a terminal, so that a bar may move."""
        return self.console.is_terminal

    def mark(self, kind: str) -> str:
        """A symbol for the margin."""
        return self._marks[kind]

    def line(self, *parts: StyledText, first: str = "", rest: str | None = None) -> None:
        """Print a paragraph. Its first line begins with `first`, the others with `rest`."""
        from rich.text import Text

        margin = " " * len(first) if rest is None else rest
        body = Text(end="")
        for part in parts:
            words, style = (part, "") if isinstance(part, str) else part
            body.append(clean(words), style=style)
        breaks = _find_line_breaks(body.plain, self.width - len(first), self.width - len(margin))
        for number, wrapped in enumerate(body.divide(breaks)):
            wrapped.rstrip()
            printed = Text(first if number == 0 else margin, end="")
            printed.append_text(wrapped)
            printed.rstrip()
            self._print(printed)

    def raw(self, *parts: StyledText) -> None:
        """Print one line as it is, with its spaces: a line of source."""
        from rich.text import Text

        line = Text(end="")
        for part in parts:
            words, style = (part, "") if isinstance(part, str) else part
            # `clean` makes one space of several control characters; indentation must stay.
            line.append(clean(words), style=style)
        line.rstrip()
        self._print(line)

    def _print(self, line: Text) -> None:
        self._begun = True
        self.console.print(line, soft_wrap=True)

    def can_show(self, text: str) -> bool:
        """Whether the terminal can encode these characters."""
        return _can_show(self.console, text)

    def gap(self) -> None:
        """Print an empty line, unless the page is still empty."""
        if self._begun:
            self.console.print()

    def next(self, command: str) -> None:
        """Print the last line: the next command, on one line however long."""
        from rich.text import Text

        self.gap()
        text = Text.assemble(("Next: ", "dim"), (clean(command), "bold"))
        self.console.print(text, soft_wrap=True)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit here with its own exit code.
            raise BrokenPipeError

    plain = bool(os.environ.get("NO_COLOR")) or not file.isatty()
    return Terminal(
        file=file,
        # Without a colour system rich writes no escape sequences, not even bold and dim.
        color_system=None if plain else "auto",
        width=None if file.isatty() else WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _find_line_breaks(text: str, room: int, later: int) -> list[int]:
    """Offsets of line breaks, with `room` for the first line and `later` for the others.

    rich would break a long word or not wrap at all; a path must stay in one piece.
    """
    from rich.cells import cell_len

    breaks = []
    used = 0
    for word in re.finditer(r"\S+\s*", text):
        if used and used + cell_len(word[0].rstrip()) > room:
            breaks.append(word.start())
            used, room = 0, later
        used += cell_len(word[0])
    return breaks


def _can_show(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
