"""Text for people: cleaning untrusted strings, shortening paths, drawing sparklines."""

from __future__ import annotations

import html
import math
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

# Paths for a page that people send around: short, and silent about whose machine it was.

# A path within the reader's project is told from there, one beside the run from the run, and what
# is left of a home directory is `~`, of whatever user: a run is often read on another machine than
# the one it ran on.

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
"""Home directories of any user, as the systems lay them out; a backslash may be doubled (JSON)."""


def make_path_shortener(subject: str | Path, cwd: Path | None = None) -> Callable[[str], str]:
    """What shortens the paths in a piece of a page about that run; the text may be escaped."""
    rules = [
        (re.compile(rf"{_BEFORE}{re.escape(told)}(?:(?P<on>[/\\]+)|(?![\w.-]))"), short)
        for folder, short in _known_folders(subject, cwd)
        for told in _spellings(folder)
    ]

    def shorten(text: str) -> str:
        for pattern, short in rules:
            text = pattern.sub(_replace_with(short), text)
        return _HOMES.sub("~", text)

    return shorten


def _replace_with(short: str) -> Callable[[re.Match[str]], str]:
    def said(match: re.Match[str]) -> str:
        if match["on"]:
            return f"{short}/" if short else ""
        return short or "."

    return said


def _known_folders(subject: str | Path, cwd: Path | None) -> list[tuple[str, str]]:
    """Folders whose paths are cut off, and what stands in their place; inner ones first."""
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
    """The innermost folder around the working directory that looks like a project, or itself."""
    for folder in (here, *here.parents):
        if folder in (home, *home.parents):
            break
        if any((folder / name).exists() for name in _ROOTS):
            return folder
    return here


def _spellings(folder: str) -> list[str]:
    """A folder as it may stand in markup and in JSON."""
    return list(dict.fromkeys([html.escape(folder), folder.replace("\\", "\\\\"), folder]))


# Paths as a person in this folder would type them. For text alone: machines get whole paths.


def shorten_local_paths(text: str) -> str:
    """The text with this folder cut off from the paths below it."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # somebody has removed it
        return text
    if here not in text or here == os.sep:
        return text
    # `/app/` is also in the middle of `/srv/app/`.
    return re.sub(rf"(?<![\w./\\~-]){re.escape(here)}(?=[^\s/])", "", text)


# Text from strangers, made safe to print.

# Parameter names, paths and messages come from other people's files. Printed as they are, an
# escape sequence in one of them could recolour the terminal, move the cursor or rewrite lines
# already shown.

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # window titles, links
    r"|\x1b.?",
    re.S,
)
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters, invisible ones (text direction among them), halves of characters."""


def clean(text: object) -> str:
    """The text on one line, without escape sequences, control and invisible characters."""
    bare = _ESCAPES.sub("", str(text))
    if bare.isascii() and bare.isprintable():
        return bare
    spaced = re.sub(r"[\t\n\v\f\r\x85\u2028\u2029]+", " ", bare)
    return "".join(mark for mark in spaced if unicodedata.category(mark) not in _INVISIBLE)


# A curve in one line of text, with a mark where it began to go wrong.

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
    """(the curve, the line below it with the onset's mark; empty without one).

    A column stands for several points: their mean, or the cross of a value that is not finite. The
    scale is logarithmic where the values span more than a factor of a hundred.
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
    """The height of a column; None where it holds a value that is not finite."""
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
