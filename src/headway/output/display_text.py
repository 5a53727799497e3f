"""Cleans untrusted text, shortens paths and draws sparklines."""

from __future__ import annotations

import html
import math
import os
import re
import shlex
import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TextIO

NEXT = "next: headway "
"""Before a command to type, which must stay in one piece."""
SHORT = 24
"""Characters before a command that need no line of their own: `headway: step 41: `."""


def wrap_for(stream: TextIO, text: str) -> str:
    """The text, wrapped between words if the stream is a terminal. A command to type is not
    wrapped: it has a line of its own."""
    width = max(shutil.get_terminal_size().columns - 1, 20)
    if not stream.isatty() or len(text) <= width:
        return text
    said, command, rest = text.partition(NEXT)
    if command and len(said) <= SHORT:
        return text
    lines = textwrap.wrap(
        said, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join([*lines, f"  {command}{rest}"] if command else lines)


def shell_quote(path: object) -> str:
    """A path as a shell reads it back, also with bytes that are not UTF-8."""
    text = str(path)
    if not _RAW_BYTE.search(text):
        return shlex.quote(text)
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_RAW_BYTE.sub(_as_hex, plain)}'"


_RAW_BYTE = re.compile(r"[\udc80-\udcff]")
"""A byte of a path that is not UTF-8."""


def _as_hex(byte: re.Match[str]) -> str:
    """The byte as bash and Python write it."""
    return f"\\x{ord(byte[0]) - 0xDC00:02x}"


# Paths in a shared report: relative to the project or to the run's parent folder, and with `~` for
# any user's home directory, since a run is often read on another machine.

_ROOTS = (".git", "pyproject.toml", "setup.py")
_BEFORE = r"(?<![\w/\\.~-])(?:file://)?"
_NAME = r"[^/\\\s:*?\"'<>|&;,()\[\]{}`]+"
_HOMES = re.compile(
    rf"{_BEFORE}(?:"
    rf"/(?:home|Users|export/home|data/home)/{_NAME}"
    r"|/root(?![\w.-])"
    rf"|[A-Za-z]:(?:\\{{1,2}}|/)Users(?:\\{{1,2}}|/){_NAME}"
    r")"
)
"""Home directories of any user on Linux, macOS and Windows; JSON doubles backslashes."""


def make_path_shortener(subject: str | Path, cwd: Path | None = None) -> Callable[[str], str]:
    """A function that shortens paths in a report about `subject`; its text may be escaped."""
    rules = [
        (re.compile(rf"{_BEFORE}{re.escape(spelled)}(?:(?P<on>[/\\]+)|(?![\w.-]))"), short)
        for folder, short in _known_folders(subject, cwd)
        for spelled in _spellings(folder)
    ]

    def shorten(text: str) -> str:
        for pattern, short in rules:
            text = pattern.sub(_replace_with(short), text)
        return _HOMES.sub("~", text)

    return shorten


def _replace_with(short: str) -> Callable[[re.Match[str]], str]:
    def replace(match: re.Match[str]) -> str:
        if match["on"]:
            return f"{short}/" if short else ""
        return short or "."

    return replace


def _known_folders(subject: str | Path, cwd: Path | None) -> list[tuple[str, str]]:
    """Folders to shorten and their replacements, inner folders first."""
    try:
        here = Path.cwd() if cwd is None else cwd
        run = (here / subject).resolve() if str(subject) else None
        home = Path.home()
    except (OSError, RuntimeError, ValueError):
        return []
    project = _find_project(here, home)
    folders = {str(project): ""}
    if run is not None and not run.is_relative_to(project) and len(run.parts) > 2:
        folders[str(run.parent)] = "…"
    if len(home.parts) > 1:
        folders.setdefault(str(home), "~")
    known = [(folder, short) for folder, short in folders.items() if len(Path(folder).parts) > 1]
    return sorted(known, key=lambda pair: -len(pair[0]))


def _find_project(here: Path, home: Path) -> Path:
    """The innermost project folder around the working directory, or the directory itself."""
    for folder in (here, *here.parents):
        if folder in (home, *home.parents):
            break
        if any((folder / name).exists() for name in _ROOTS):
            return folder
    return here


def _spellings(folder: str) -> list[str]:
    """A folder as written in HTML, in JSON and plain."""
    return list(dict.fromkeys([html.escape(folder), folder.replace("\\", "\\\\"), folder]))


def shorten_local_paths(text: str) -> str:
    """Make paths below the working directory relative. For text only; machines get full paths."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # the directory was removed
        return text
    if here not in text or here == os.sep:
        return text
    # `/app/` is also in the middle of `/srv/app/`.
    return re.sub(rf"(?<![\w./\\~-]){re.escape(here)}(?=[^\s/])", "", text)


# Parameter names, paths and messages come from untrusted files. An escape sequence in them could
# recolour the terminal, move the cursor or overwrite lines.

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # window titles, links
    r"|\x1b.?",
    re.S,
)
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control, invisible (such as text direction) and surrogate characters."""


def clean(text: object) -> str:
    """The text on one line, without escape sequences, control and invisible characters.

    Bytes of a path that are not UTF-8 become `\\xNN`.
    """
    bare = _ESCAPES.sub("", str(text))
    if bare.isascii() and bare.isprintable():
        return bare
    spaced = re.sub(r"[\t\n\v\f\r\x85\u2028\u2029]+", " ", bare)
    spaced = _RAW_BYTE.sub(_as_hex, spaced)
    return "".join(mark for mark in spaced if unicodedata.category(mark) not in _INVISIBLE)


BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
BAD, PLAIN_BAD = "×", "x"
MARK, PLAIN_MARK = "▲", "^"


def sparkline(
    steps: Sequence[int],
    values: Sequence[float],
    *,
    width: int,
    onset: int | None = None,
    plain: bool = False,
) -> tuple[str, str]:
    """(the curve, the line below it that marks `onset`; empty without one).

    A column is the mean of several points, or a cross if one is non-finite. The scale is
    logarithmic if the values span more than a factor of 100.
    """
    bars, bad = (PLAIN_BARS, PLAIN_BAD) if plain else (BARS, BAD)
    count = min(len(values), len(steps))
    if not count or width < 2:
        return "", ""
    columns = min(width, count)
    edges = [count * at // columns for at in range(columns + 1)]
    groups = [values[start:end] for start, end in pairwise(edges)]
    heights = _heights([_level(group) for group in groups], len(bars))
    curve = "".join(bad if height is None else bars[height] for height in heights)
    if onset is None or onset > steps[count - 1] or onset < steps[0]:
        return curve, ""
    place = next(
        (at for at in range(columns) if any(s >= onset for s in steps[edges[at] : edges[at + 1]])),
        columns - 1,
    )
    return curve, " " * place + (PLAIN_MARK if plain else MARK)


def _level(group: Sequence[float]) -> float | None:
    """The height of a column; None if it contains a non-finite value."""
    if any(not math.isfinite(value) for value in group):
        return None
    return sum(value / len(group) for value in group)


def _heights(levels: Sequence[float | None], steps: int) -> list[int | None]:
    known = [level for level in levels if level is not None]
    if not known:
        return [None] * len(levels)
    low, high = min(known), max(known)
    if low > 0 and high > 100 * low:
        return _heights([None if x is None else math.log(x) for x in levels], steps)
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [None if level is None else 0 for level in levels]
    return [
        None if level is None else min(int((level - low) / span * steps), steps - 1)
        for level in levels
    ]
