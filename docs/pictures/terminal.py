"""A command's output as it looks in a terminal, and that as SVG which fetches nothing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07")
"""Escape sequences that do not colour."""
_SPINNER = re.compile(r"^(?:\x1b\[[0-9;]*m)*[\u2800-\u28ff]")
"""A line that says what is waited for: it is wiped away afterwards."""
_FONTS = re.compile(r"@font-face\s*{[^}]*}\s*")
THEME = TerminalTheme(
    (24, 28, 33),
    (226, 230, 234),
    [
        (24, 28, 33), (255, 123, 114), (111, 206, 147), (232, 183, 74),
        (109, 177, 255), (207, 155, 242), (92, 201, 219), (226, 230, 234),
    ],
    [
        (139, 148, 158), (255, 138, 125), (126, 231, 165), (245, 205, 105),
        (135, 195, 255), (220, 180, 250), (120, 220, 235), (255, 255, 255),
    ],
)  # fmt: skip


def run(command: list[str], folder: Path, width: int, height: int = 50) -> str:
    """What a command prints on a terminal of that width, colours included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width)}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            pieces.append(piece)
        process.wait()
    os.close(ours)
    text = _MOVES.sub("", b"".join(pieces).decode("utf-8", "replace")).replace("\r\n", "\n")
    # A line that was written over shows what was written last.
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(line for line in lines if not _SPINNER.match(line)).strip() + "\n"


def svg(printed: str, title: str, width: int) -> str:
    """The picture. Fonts are the reader's own: a picture in a page cannot fetch any."""
    console = Console(record=True, width=width, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(printed), soft_wrap=False)
    picture = console.export_svg(title=title, theme=THEME, unique_id="headway")
    picture = _FONTS.sub("", picture)
    return picture.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
