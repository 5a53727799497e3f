"""Walks Python frames: which line of user code runs."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO

import torch

from headway.core.findings import CELL, say_line
from headway.torch_adapters.private_parts import private_part

# A stack goes through torch, the standard library, frameworks and headway itself. The line to
# report is the innermost one that is none of these.

MAX_CACHED_FILES = 4096
"""Files whose kind is remembered: stacks are walked often, and go through the same ones."""

PACKAGES = frozenset({"site-packages", "dist-packages"})
"""What the folders are called that installers fill."""

_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?')


@dataclass(frozen=True, slots=True)
class Location:
    """A line of code, with its text if that was read."""

    file: str
    line: int
    function: str | None = None
    source: str = ""

    @property
    def within(self) -> str | None:
        """The function it is in; None at the top level of a file."""
        return None if self.function == "<module>" else self.function

    def __str__(self) -> str:
        """Relative to the working directory: `train.py:31`; in a notebook, `cell [2], line 3`."""
        here = os.path.join(os.getcwd(), "")
        return say_line(name_file(self.file).removeprefix(here), self.line)

    def to_dict(self) -> dict[str, Any]:
        """The form in events, without the text."""
        return {"file": name_file(self.file), "line": self.line, "function": self.function}


def name_file(file: str) -> str:
    """A file as the user knows it: `cell [2]` for the code of a notebook's cell."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return file
    try:
        known = ipython.get_ipython().compile.format_code_name(file)  # ("Cell", "In[2]")
        number = re.search(r"\[(\d+)\]", known[1])
    except Exception:  # no shell, another kind of shell, or a file
        return file
    if number is None:
        return file
    name = f"{CELL}{number[1]}]"
    # Without a modification time: the text of a cell is on no disk.
    lines = linecache.getlines(file)
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return name


def find_user_location(frames: Iterable[Location]) -> Location | None:
    """Of a stack, innermost first: the user's line; a framework's where there is none."""
    foreign: Location | None = None
    stack = list(frames)
    for at, frame in enumerate(stack):
        if is_internal_file(frame.file):
            continue
        callers = stack[at + 1 : at + 2]
        if frame.file == "<string>" and callers and is_internal_file(callers[0].file):
            continue  # generated code: the `__init__` of a dataclass
        if not is_installed_file(frame.file):
            return frame
        foreign = foreign or frame
    return foreign


def parse_traceback(lines: Iterable[str]) -> list[Location]:
    """The frames of a formatted stack, innermost first."""
    found = [match for text in lines if (match := _FRAME.match(text))]
    return [Location(at["file"], int(at["line"]), at["function"]) for at in reversed(found)]


def clear_frames(error: BaseException) -> None:
    """Drop the local variables of the frames of an exception that have ended."""
    traceback.clear_frames(error.__traceback__)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        _ = frame.f_locals  # before Python 3.13 a copy that was read once keeps them: read it anew


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


# The Python frames that run now.

current_frame: Callable[[int], FrameType | None] = private_part(
    "sys._getframe",
    lambda depth=0: None,
    without="no line of user code is known, and no step is re-run from its loop",
)
"""The frame of its caller, or the one `depth` frames up."""


def walk_callers(frame: FrameType | None, most: int = sys.maxsize) -> Iterator[FrameType]:
    """A frame and the frames that called it, innermost first."""
    while frame is not None and most > 0:
        yield frame
        frame = frame.f_back
        most -= 1


def find_frame(code: CodeType, frame: FrameType | None, most: int) -> FrameType | None:
    """The innermost frame that runs this code: `frame` itself or one that called it."""
    while frame is not None and most > 0:
        if frame.f_code is code:
            return frame
        frame = frame.f_back
        most -= 1
    return None


def find_user_frame(frame: FrameType | None, most: int) -> FrameType | None:
    """The innermost frame that runs the user's own code: `frame` itself or one that called it."""
    while frame is not None and most > 0:
        file = frame.f_code.co_filename
        if not is_internal_file(file) and not is_installed_file(file):
            return frame
        frame = frame.f_back
        most -= 1
    return None


def find_caller(names: Collection[str], most: int) -> FrameType | None:
    """The innermost frame that runs a function of one of these names, among the callers of the
    function that asks."""
    frame = current_frame(2)
    while frame is not None and most > 0:
        if frame.f_code.co_name in names:
            return frame
        frame = frame.f_back
        most -= 1
    return None


def running_frames(internal: dict[CodeType, bool]) -> Iterator[FrameType]:
    """The frames that run now, innermost first, without those of torch, Python and headway.

    `internal` remembers which code is whose: stacks are walked for every op.
    """
    frame = current_frame(1)
    while frame is not None:
        code = frame.f_code
        skip = internal.get(code)
        if skip is None:
            skip = internal[code] = is_internal_file(code.co_filename)
        if not skip:
            yield frame
        frame = frame.f_back


def find_running_frame(kinds: dict[CodeType, int]) -> FrameType | None:
    """The innermost frame that runs the user's own code; a framework's where there is none.

    `kinds` remembers which code is whose: 0 the user's, 1 a framework's, 2 anything else's.
    """
    frame, foreign = current_frame(1), None
    while frame is not None:
        code = frame.f_code
        kind = kinds.get(code)
        if kind is None:
            file = code.co_filename
            kind = kinds[code] = 2 if is_internal_file(file) else int(is_installed_file(file))
        if kind == 0:
            return frame
        if kind == 1 and foreign is None:
            foreign = frame
        frame = frame.f_back
    return foreign


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame runs the user's own code, not that of an installed package."""
    file = frame.f_code.co_filename
    return not is_internal_file(file) and not is_installed_file(file)


def describe_frame(frame: FrameType) -> Location:
    """The line a frame is at."""
    code = frame.f_code
    return Location(code.co_filename, frame.f_lineno, code.co_name)


@contextmanager
def warnings_at_user_lines() -> Iterator[None]:
    """Within: a warning from one of our wrappers names the user's line, and comes once for each.

    torch takes the innermost Python frame, which is ours while a wrapped function runs.
    """
    before = warnings.showwarning
    shown: set[tuple[str, type[Warning], str, int]] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if is_headway_file(filename):
            frame = next(filter(is_user_frame, walk_callers(sys._getframe(1))), None)
            if frame is not None:
                filename, lineno, line = frame.f_code.co_filename, frame.f_lineno, None
            place = (str(message), category, filename, lineno)
            if place in shown:
                return
            shown.add(place)
        before(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:  # a script may have set its own
            warnings.showwarning = before


# What `torch.compile` says about an exception in the code that it traces. The traceback of such an
# exception ends inside the compiler. The line of the user's code and the original error are in its
# message.

_USER_CODE = "from user code:"
_ORIGINAL = re.compile(
    r": got (?P<kind>\w+)\((?P<quote>['\"])(?P<text>.*?)\)?(?P=quote)\)", re.DOTALL
)
_HINT = re.compile(r"\(s\d+: hint = (\d+)\)")


def is_compiler_error(error: BaseException) -> bool:
    """Whether the compiler raised it while it traced code of the user."""
    return type(error).__module__.startswith("torch._dynamo") and _USER_CODE in str(error)


def compiled_frames(error: BaseException) -> list[Location]:
    """The frames of the traced code, innermost first; none for other exceptions."""
    if not is_compiler_error(error):
        return []
    return parse_traceback(str(error).partition(_USER_CODE)[2].splitlines())


def original_error(error: BaseException) -> str | None:
    """`RuntimeError: …` as it would be without the compiler; None if the message has none."""
    found = _ORIGINAL.search(str(error)) if is_compiler_error(error) else None
    if found is None:
        return None
    text = _HINT.sub(r"(\1)", found["text"])
    return f"{found['kind']}: {text}"
