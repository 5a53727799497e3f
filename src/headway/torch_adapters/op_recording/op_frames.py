"""Finds the line of user code an op comes from, by walking the Python frames around it.

During backward the frames of the call to `backward()` say nothing about the op; those inside of the
engine do: a custom `backward`, a hook, or a forward that activation checkpointing runs again.
"""

from __future__ import annotations

import linecache
from types import CodeType, FrameType
from typing import NamedTuple

from headway.torch_adapters.frames import (
    Location,
    current_frame,
    is_installed_file,
    is_internal_file,
    walk_callers,
)

_MACHINERY, _LIBRARY, _USERS, _ENGINE, _CHECKPOINT = range(5)
_kinds: dict[str, int] = {}


_WITHIN = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))
"""Frames that are a part of the function they stand in."""


class FrameLine(NamedTuple):
    """A line, without its text."""

    file: str
    line: int
    function: str
    begins: int = 0
    """The line its function begins at."""

    def read(self) -> Location:
        source = linecache.getline(self.file, self.line).strip()
        return Location(self.file, self.line, self.function, source)


class FrameContext(NamedTuple):
    """The facts that the frames around an op contain."""

    place: FrameLine | None = None
    """The innermost line that is not torch's."""
    called_from: FrameLine | None = None
    """The user's own, where that one is a library's."""
    caller: FrameLine | None = None
    """The user's line that called the function that one is in."""
    recomputed: bool = False
    """In backward: a forward that is run again."""
    nested: bool = False
    """In backward: an engine called by Python code is running."""


def read_frame_context(depth: int, *, in_backward: bool) -> FrameContext:
    """The frames around the caller `depth` frames up; in backward, those inside of the engine."""
    place: FrameLine | None = None
    outer: FrameLine | None = None
    users = within = recomputed = nested = False
    frame = _frame_above(depth + 1)
    while frame is not None and (outer is None or in_backward):
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _classify_file(code.co_filename)
        if kind in (_LIBRARY, _USERS):
            if place is None:
                place, users = _frame_line(frame), kind == _USERS
            elif within:
                place = place._replace(begins=code.co_firstlineno)
            elif kind == _USERS and outer is None:
                outer = _frame_line(frame)
            within = outer is None and users and code.co_name in _WITHIN
        elif in_backward and kind == _CHECKPOINT:
            recomputed = True
            break
        elif in_backward and kind == _ENGINE and code.co_name == "_engine_run_backward":
            nested = True
            break
        frame = frame.f_back
    called_from, caller = (None, outer) if users else (outer, None)
    return FrameContext(place, called_from, caller, recomputed, nested)


class RawFrames(NamedTuple):
    """What `read_frame_context` reads outside of backward, unprocessed."""

    code: CodeType | None
    line: int = 0
    users: bool = False
    caller: CodeType | None = None
    caller_line: int = 0
    begins: int = 0
    """The line at which the function around a comprehension begins."""

    def to_context(self) -> FrameContext:
        if self.code is None:
            return FrameContext()
        begins = self.begins or self.code.co_firstlineno
        place = FrameLine(self.code.co_filename, self.line, self.code.co_name, begins)
        outer = self.caller and FrameLine(
            self.caller.co_filename,
            self.caller_line,
            self.caller.co_name,
            self.caller.co_firstlineno,
        )
        return FrameContext(place, None, outer) if self.users else FrameContext(place, outer)


_NO_FRAMES = RawFrames(None)


def read_raw_frames(depth: int) -> RawFrames:
    """The frames around the caller `depth` frames up, outside of backward: for every op."""
    frame = _frame_above(depth + 1)
    place: FrameType | None = None
    users = within = False
    begins = 0
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _classify_file(code.co_filename)
        if kind == _USERS or (kind == _LIBRARY and place is None):
            if place is None:
                place, users = frame, kind == _USERS
                within = users and code.co_name in _WITHIN
            elif within:
                begins, within = code.co_firstlineno, code.co_name in _WITHIN
            else:
                at = place.f_lineno
                return RawFrames(place.f_code, at, users, code, frame.f_lineno, begins)
        frame = frame.f_back
    if place is None:
        return _NO_FRAMES
    return RawFrames(place.f_code, place.f_lineno, users, begins=begins)


def _frame_above(depth: int) -> FrameType | None:
    """The frame `depth` frames up; None where there is none: the engine runs the backward pass of a
    GPU in a thread of its own, whose first Python frame is headway's."""
    try:
        return current_frame(depth)
    except ValueError:
        return None


def in_checkpointed_forward() -> bool:
    """Whether torch.utils.checkpoint, or DeepSpeed's, is among the callers."""
    return any(
        _classify_file(frame.f_code.co_filename) == _CHECKPOINT
        for frame in walk_callers(current_frame(1))
    )


def _frame_line(frame: FrameType) -> FrameLine:
    code = frame.f_code
    return FrameLine(code.co_filename, frame.f_lineno, code.co_name, code.co_firstlineno)


def _classify_file(file: str) -> int:
    path = file.replace("\\", "/")
    if path.endswith("torch/autograd/graph.py"):
        return _ENGINE
    if path.endswith(("torch/utils/checkpoint.py", "activation_checkpointing/checkpointing.py")):
        return _CHECKPOINT
    if is_internal_file(file):
        return _MACHINERY
    return _LIBRARY if is_installed_file(file) else _USERS
