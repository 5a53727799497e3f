"""Whose line an op comes from, out of the Python frames around it.

During backward the frames of the call to `backward()` say nothing about the op; those inside of
the engine do: a custom `backward`, a hook, or a forward that activation checkpointing runs again.
"""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import NamedTuple

from headway.replay.explanation import Line
from headway.torch_tools.places import is_installed, is_machinery

_MACHINERY, _LIBRARY, _USERS, _ENGINE, _CHECKPOINT = range(5)
_kinds: dict[str, int] = {}


_WITHIN = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))
"""Frames that are a part of the function they stand in."""


class Spot(NamedTuple):
    """A line, without its text."""

    file: str
    line: int
    function: str
    begins: int = 0
    """The line its function begins at."""

    def read(self) -> Line:
        source = linecache.getline(self.file, self.line).strip()
        return Line(self.file, self.line, self.function, source)


class Around(NamedTuple):
    """What the frames around an op say."""

    place: Spot | None = None
    """The innermost line that is not torch's."""
    called_from: Spot | None = None
    """The user's own, where that one is a library's."""
    caller: Spot | None = None
    """The user's line that called the function that one is in."""
    recomputed: bool = False
    """In backward: a forward that is run again."""
    nested: bool = False
    """In backward: an engine called by Python code is running."""


def around(depth: int, *, in_backward: bool) -> Around:
    """The frames around the caller `depth` frames up; in backward, those inside of the engine."""
    place: Spot | None = None
    outer: Spot | None = None
    users = within = recomputed = nested = False
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and (outer is None or in_backward):
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _kind(code.co_filename)
        if kind in (_LIBRARY, _USERS):
            if place is None:
                place, users = _spot(frame), kind == _USERS
            elif within:
                place = place._replace(begins=code.co_firstlineno)
            elif kind == _USERS and outer is None:
                outer = _spot(frame)
            within = outer is None and users and code.co_name in _WITHIN
        elif in_backward and kind == _CHECKPOINT:
            recomputed = True
            break
        elif in_backward and kind == _ENGINE and code.co_name == "_engine_run_backward":
            nested = True
            break
        frame = frame.f_back
    called_from, caller = (None, outer) if users else (outer, None)
    return Around(place, called_from, caller, recomputed, nested)


def _spot(frame: FrameType) -> Spot:
    code = frame.f_code
    return Spot(code.co_filename, frame.f_lineno, code.co_name, code.co_firstlineno)


def _kind(file: str) -> int:
    path = file.replace("\\", "/")
    if path.endswith("torch/autograd/graph.py"):
        return _ENGINE
    if path.endswith(("torch/utils/checkpoint.py", "activation_checkpointing/checkpointing.py")):
        return _CHECKPOINT
    if is_machinery(file):
        return _MACHINERY
    return _LIBRARY if is_installed(file) else _USERS
