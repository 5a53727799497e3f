"""Reads the Python stacks of all threads of this process, from another thread."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from headway.torch_adapters.frames import (
    Location,
    describe_frame,
    find_user_location,
    is_installed_file,
    is_internal_file,
    walk_callers,
)
from headway.torch_adapters.private_parts import private_part

MAX_FRAMES = 64
"""Frames of a stack that are read, innermost first."""
_DEBUGGERS = ("pdb.py", "bdb.py", "pydevd.py", "ipdb", "debugpy")
_PROMPTS = frozenset({"interaction", "raw_input", "do_wait_suspend"})

_current_frames: Callable[[], dict[int, FrameType]] = private_part(
    "sys._current_frames",
    dict,
    without="the line at which a thread hangs is not known",
)


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread."""

    ident: int
    name: str
    frames: Sequence[Location]
    """Innermost first."""

    @property
    def place(self) -> Location | None:
        """The innermost line of the user's code, with its text; None where none runs.

        A line of an installed package does not count: nothing of the user's is running then.
        """
        found = find_user_location(self.frames)
        if found is None or is_installed_file(found.file):
            return None
        source = linecache.getline(found.file, found.line).strip()
        return Location(found.file, found.line, found.function, source)

    def describe(self) -> list[str]:
        """One line of text per frame."""
        return [f"{frame} {frame.function}" for frame in self.frames]


def read_stacks() -> list[ThreadStack]:
    """The stacks of all threads except the calling one."""
    own = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        ThreadStack(ident, names.get(ident, f"thread {ident}"), _locations(frame))
        for ident, frame in _current_frames().items()
        if ident != own
    ]


def read_stack_of(ident: int) -> ThreadStack | None:
    """The stack of one thread; None if it runs no Python code."""
    frame = _current_frames().get(ident)
    return None if frame is None else ThreadStack(ident, "", _locations(frame))


def fingerprint_stack(ident: int) -> tuple[Any, ...]:
    """Changes whenever the thread executes anything in Python; equal values mean a standstill."""
    frame = _current_frames().get(ident)
    return tuple((id(item), item.f_lasti) for item in walk_callers(frame, MAX_FRAMES))


def is_at_prompt(stack: ThreadStack) -> bool:
    """Whether the thread waits for a person: in a debugger."""
    if sys.gettrace() is not None and any(name in sys.modules for name in ("pydevd", "debugpy")):
        return True
    return any(
        frame.file.endswith(_DEBUGGERS[:3]) and frame.function in _PROMPTS for frame in stack.frames
    )


def _locations(frame: FrameType) -> list[Location]:
    return [describe_frame(item) for item in walk_callers(frame, MAX_FRAMES)]


def is_library_frame(frame: Location) -> bool:
    """Whether a frame is not of the user's own code."""
    return is_internal_file(frame.file) or is_installed_file(frame.file)
