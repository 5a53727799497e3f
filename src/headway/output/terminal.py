"""Terminal output: a page of wrapped and coloured text, a status line and a progress bar.

Imports rich only when it prints.
"""

from __future__ import annotations

import os
import re
import shutil
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


PROGRESS_DELAY_SECONDS = 0.5
REDRAW_SECONDS = 0.2


class StatusLine:
    """One line on stderr that is redrawn, only on a terminal."""

    def __init__(self) -> None:
        self._file = sys.stderr
        self._write = self._file.write
        self.live = self._file.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = False
        self._inside_line = False
        """Whether the last text of the script does not end its line: a progress bar of its own."""
        self._last = float("-inf")
        self._lock = threading.RLock()  # a signal handler may print while the line is drawn

    def show(self, text: str, *, at_once: bool = False) -> None:
        """Draw the line, at most a few times a second."""
        now = time.monotonic()
        with self._lock:
            if not self.live or self._inside_line:
                return
            if now - self._last < REDRAW_SECONDS and not at_once:
                return
            self._last, self._drawn = now, True
            room = max(shutil.get_terminal_size().columns - 1, 20)
            self._write(f"\r\x1b[2K{clean(text)[:room]}")
            self._file.flush()

    def print_above(self, text: str) -> None:
        """Print a line that stays on the screen."""
        with self._lock:
            if self.live:
                self.clear()
                begin = "\n" if self._inside_line else ""
                self._write(f"{begin}{clean(text)}\n")
                self._file.flush()
                self._inside_line = False

    def clear(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._drawn:
                self._write("\r\x1b[2K")
                self._file.flush()
            self._drawn = False

    @contextmanager
    def among_output(self) -> Iterator[None]:
        """Within: whatever Python code prints first removes the line."""
        changed: list[Any] = []
        if self.live:
            for stream in {id(item): item for item in (sys.stdout, sys.stderr)}.values():
                if stream.isatty() and "write" not in getattr(stream, "__dict__", {"write": None}):
                    stream.write = self._around(stream.write)  # type: ignore[method-assign]
                    changed.append(stream)
        try:
            yield
        finally:
            for stream in changed:
                del stream.write
            self.clear()

    def _around(self, write: Callable[[str], int]) -> Callable[[str], int]:
        def write_after_clearing(text: str) -> int:
            self.clear()
            if text:
                self._inside_line = not text.endswith("\n")
            return write(text)

        return write_after_clearing


@contextmanager
def spinner(
    for_what: str,
    *,
    delay_s: float = PROGRESS_DELAY_SECONDS,
    share: Callable[[], float | None] | None = None,
) -> Iterator[None]:
    """Show on a terminal the current task and its time, once it takes longer than the delay.

    `share`: how much of it is done, if that is known, for the time that is left.
    Needs no other package, so that the line comes before anything slow is imported.
    """
    line = StatusLine()
    if not line.live:
        yield
        return
    began = time.monotonic()
    over = threading.Event()
    if not delay_s:
        line.show(f"headway: {for_what}", at_once=True)

    def draw() -> None:
        wait = delay_s or 1.0
        while not over.wait(wait):
            wait = 1.0
            took = time.monotonic() - began
            done = share() if share is not None else None
            left = f" elapsed, about {format_seconds(took / done - took)} left" if done else ""
            part = f" {100 * done:.0f} %," if done else ""
            line.show(f"headway: {for_what},{part} {format_seconds(took)}{left}")

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        line.clear()


def format_seconds(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, left = divmod(int(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


@contextmanager
def progress_bar() -> Iterator[Callable[..., Any] | None]:
    """Yields a function to call with (bytes done, total bytes); None without a terminal.

    The bar is drawn on stderr after a second.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    shown = Progress(
        TextColumn("scanning"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
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

    def begin_after_script(self) -> None:
        """Print an empty line on a terminal: a progress bar may have left its line unfinished."""
        if self.console.is_terminal:
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
