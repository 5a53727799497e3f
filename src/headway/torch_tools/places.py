"""Which line of the user's own code something comes from.

A stack goes through torch, the standard library, frameworks and headway itself. The line worth
telling is the innermost one that is none of these.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

MOST_FILES = 4096
"""Files whose kind is remembered: stacks are walked often, and go through the same ones."""

PACKAGES = frozenset({"site-packages", "dist-packages"})
"""What the folders are called that installers fill."""

_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?')


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code."""

    file: str
    line: int
    function: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As events carry it."""
        return {"file": self.file, "line": self.line, "function": self.function}


def users_own(frames: Iterable[Place]) -> Place | None:
    """Of a stack, innermost first: the user's line; a framework's where there is none."""
    foreign: Place | None = None
    for frame in frames:
        if is_machinery(frame.file):
            continue
        if not is_installed(frame.file):
            return frame
        foreign = foreign or frame
    return foreign


def from_traceback(lines: Iterable[str]) -> list[Place]:
    """The frames of a formatted stack, innermost first."""
    found = [match for text in lines if (match := _FRAME.match(text))]
    return [Place(at["file"], int(at["line"]), at["function"]) for at in reversed(found)]


@lru_cache(maxsize=MOST_FILES)
def is_machinery(file: str) -> bool:
    """Whether a file is part of torch, of Python or of headway."""
    if file.startswith(("<frozen", "<eval_with_key", _torch())) or is_ours(file):
        return True
    return file.startswith(_standard()) and not is_installed(file)


@lru_cache(maxsize=MOST_FILES)
def is_installed(file: str) -> bool:
    """Whether a file belongs to a package that was installed."""
    return file.startswith(_installed())


def is_ours(file: str) -> bool:
    """Whether a file is part of headway; its demo plays a user."""
    return file.startswith(_ours()) and not file.startswith(f"{_ours()}demo{os.sep}")


def with_function(place: Place) -> Place:
    """The place with the name of the function around the line, where it was not known."""
    if place.function is not None:
        return place
    return Place(place.file, place.line, _function_around(place.file, place.line))


def _function_around(file: str, line: int) -> str | None:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    found = None
    for node in ast.walk(tree):  # the outer before the inner
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node.name
    return found or "<module>"


@cache
def _torch() -> str:
    return _folder(Path(torch.__file__).parent)


@cache
def _ours() -> str:
    return _folder(Path(__file__).parents[1])


@cache
def _standard() -> str:
    return _folder(sysconfig.get_path("stdlib"))


@cache
def _installed() -> tuple[str, ...]:
    """Where packages are installed: for this interpreter, for the user, and in the environments
    that a virtual environment stands on."""
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    folders.update(path for path in sys.path if Path(path).name in PACKAGES)
    return tuple(map(_folder, folders))


def _folder(path: str | Path) -> str:
    return f"{path}{os.sep}"
