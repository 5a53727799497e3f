"""Finds the user's own line in a stack, and the user's own names of models and modules."""

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
from torch import nn

# Which line of the user's own code something comes from.

# A stack goes through torch, the standard library, frameworks and headway itself. The line worth
# telling is the innermost one that is none of these.

MAX_CACHED_FILES = 4096
"""Files whose kind is remembered: stacks are walked often, and go through the same ones."""

PACKAGES = frozenset({"site-packages", "dist-packages"})
"""What the folders are called that installers fill."""

_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?')


@dataclass(frozen=True, slots=True)
class Location:
    """A line of code."""

    file: str
    line: int
    function: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As events carry it."""
        return {"file": self.file, "line": self.line, "function": self.function}


def find_user_location(frames: Iterable[Location]) -> Location | None:
    """Of a stack, innermost first: the user's line; a framework's where there is none."""
    foreign: Location | None = None
    for frame in frames:
        if is_internal_file(frame.file):
            continue
        if not is_installed_file(frame.file):
            return frame
        foreign = foreign or frame
    return foreign


def parse_traceback(lines: Iterable[str]) -> list[Location]:
    """The frames of a formatted stack, innermost first."""
    found = [match for text in lines if (match := _FRAME.match(text))]
    return [Location(at["file"], int(at["line"]), at["function"]) for at in reversed(found)]


@lru_cache(maxsize=MAX_CACHED_FILES)
def is_internal_file(file: str) -> bool:
    """Whether a file is part of torch, of Python or of headway."""
    if file.startswith(("<frozen", "<eval_with_key", _torch())) or is_headway_file(file):
        return True
    return file.startswith(_standard()) and not is_installed_file(file)


@lru_cache(maxsize=MAX_CACHED_FILES)
def is_installed_file(file: str) -> bool:
    """Whether a file belongs to a package that was installed."""
    return file.startswith(_installed())


def is_headway_file(file: str) -> bool:
    """Whether a file is part of headway; its demo plays a user."""
    return file.startswith(_ours()) and not file.startswith(f"{_ours()}demo{os.sep}")


def add_function_name(place: Location) -> Location:
    """The place with the name of the function around the line, where it was not known."""
    if place.function is not None:
        return place
    return Location(place.file, place.line, _function_around(place.file, place.line))


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


# Models and modules under the names the user knows: without what torch wraps around them.

_WRAPPERS = {"", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def user_path(path: str) -> str:
    """A path as the user wrote it: without what torch.compile and its like wrap around modules."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def unwrap_model(model: nn.Module) -> nn.Module:
    """The user's own module, without what torch.compile and DDP wrap around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
