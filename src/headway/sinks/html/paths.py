"""Paths for a page that people send around: short, and silent about whose machine it was.

A path within the reader's project is told from there, one beside the run from the run, and what is
left of a home directory is `~`, of whatever user: a run is often read on another machine than the
one it ran on.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path

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


def shortener(subject: str | Path, cwd: Path | None = None) -> Callable[[str], str]:
    """What shortens the paths in a piece of a page about that run; the text may be escaped."""
    rules = [
        (re.compile(rf"{_BEFORE}{re.escape(told)}(?:(?P<on>[/\\]+)|(?![\w.-]))"), short)
        for folder, short in _known(subject, cwd)
        for told in _spellings(folder)
    ]

    def shorten(text: str) -> str:
        for pattern, short in rules:
            text = pattern.sub(_with(short), text)
        return _HOMES.sub("~", text)

    return shorten


def _with(short: str) -> Callable[[re.Match[str]], str]:
    def said(match: re.Match[str]) -> str:
        if match["on"]:
            return f"{short}/" if short else ""
        return short or "."

    return said


def _known(subject: str | Path, cwd: Path | None) -> list[tuple[str, str]]:
    """Folders whose paths are cut off, and what stands in their place; inner ones first."""
    try:
        here = Path.cwd() if cwd is None else cwd
        run = (here / subject).resolve() if str(subject) else None
        home = Path.home()
    except (OSError, RuntimeError, ValueError):
        return []
    project = _project(here, home)
    folders = {str(project): ""}
    if run is not None and not run.is_relative_to(project) and len(run.parts) > 2:
        folders[str(run.parent)] = "…"
    if len(home.parts) > 1:
        folders.setdefault(str(home), "~")
    known = [(folder, short) for folder, short in folders.items() if len(Path(folder).parts) > 1]
    return sorted(known, key=lambda pair: -len(pair[0]))


def _project(here: Path, home: Path) -> Path:
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
