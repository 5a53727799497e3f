"""Whose line an op comes from, out of the Python frames around it.

During backward the frames of the call to `backward()` say nothing about the op; those inside of
the engine do: a custom `backward`, a hook, or a forward that activation checkpointing runs again.
"""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import NamedTuple

from holdfast.replay.explanation import Line
from holdfast.torch_tools.places import is_installed, is_machinery

_MACHINERY, _LIBRARY, _USERS, _ENGINE, _CHECKPOINT = range(5)
_kinds: dict[str, int] = {}


class Spot(NamedTuple):
    """A line, without its text."""

    file: str
    line: int
    function: str

    def read(self) -> Line:
        source = linecache.getline(self.file, self.line).strip()
        return Line(self.file, self.line, self.function, source)


class Around(NamedTuple):
    """What the frames around an op say."""

    place: Spot | None = None
    """The innermost line that is not torch's."""
    called_from: Spot | None = None
    """The user's own, where that one is a library's."""
    recomputed: bool = False
    """In backward: a forward that is run again."""
    nested: bool = False
    """In backward: an engine called by Python code is running."""


def around(depth: int, *, in_backward: bool) -> Around:
    """The frames around the caller `depth` frames up; in backward, those inside of the engine."""
    place: Spot | None = None
    called_from: Spot | None = None
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _kind(code.co_filename)
        if kind in (_LIBRARY, _USERS):
            if place is None:
                place = _spot(frame)
            elif kind == _USERS:
                called_from = _spot(frame)
            if kind == _USERS and not in_backward:
                break
        elif in_backward and kind == _CHECKPOINT:
            return Around(place, called_from, recomputed=True)
        elif in_backward and kind == _ENGINE and code.co_name == "_engine_run_backward":
            return Around(place, called_from, nested=True)
        frame = frame.f_back
    return Around(place, called_from)


def _spot(frame: FrameType) -> Spot:
    return Spot(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _kind(file: str) -> int:
    path = file.replace("\\", "/")
    if path.endswith("torch/autograd/graph.py"):
        return _ENGINE
    if path.endswith(("torch/utils/checkpoint.py", "activation_checkpointing/checkpointing.py")):
        return _CHECKPOINT
    if is_machinery(file):
        return _MACHINERY
    return _LIBRARY if is_installed(file) else _USERS
