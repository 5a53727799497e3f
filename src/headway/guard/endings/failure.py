"""Turns the exception that ends a run into the events of its ending.

`record_failure` is called where an exception leaves the user's code. Kinds of failures with
a check of their own are recognised in turn (`RECOGNISERS`); everything else is a crash.
"""

from __future__ import annotations

import importlib
import linecache
import mmap
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from headway.core.ending_facts import CRASH
from headway.errors import TrainingHalted
from headway.guard.recorder import Recorder
from headway.output.notices import logger
from headway.rundir.vanished_run import find_stack_phase
from headway.torch_adapters.device_failure import device_memory
from headway.torch_adapters.frames import (
    Location,
    compiled_frames,
    find_user_location,
    is_installed_file,
    original_error,
)
from headway.torch_adapters.saves import failed_part

if TYPE_CHECKING:
    from headway.guard.endings.device_assert import HostInputs
    from headway.guard.endings.save_failure import SaveWatch

MAX_TEXT = 4000
"""Characters of an exception's message that an event contains."""
MAX_LINE = 300
"""Characters of its first line that a message contains."""
LINES_AROUND = 2
"""Lines of source shown before and after the line that raised."""
STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOT_FAILURES = frozenset({"TrialPruned", "StepLimitReached", "GeneratorExit"})
"""Exceptions by which a script or a framework ends a run on purpose."""
_STOPS = (StopIteration, StopAsyncIteration)
"""Exceptions that no generator may raise: Python replaces them by a RuntimeError."""
INTERRUPTIONS = {"SIGTERMException": signal.SIGTERM}
"""Exceptions of frameworks that stand for a signal."""


@dataclass(frozen=True, slots=True)
class FailureMoment:
    """The state of the training when an exception was raised."""

    steps: int = 0
    """Steps that were made."""
    in_body: bool = False
    """Whether the body of the loop continues after its optimizer has stepped."""
    batch: Sequence[dict[str, Any]] = ()
    """The tensors of the current batch, as `BatchTensor` facts."""
    sample: int | None = None
    host_inputs: HostInputs | None = None
    """What a run of the step on the host starts from; None where there is no other device."""
    saves: SaveWatch | None = None
    """The saves of the run."""
    asked: int | None = None
    """The signal that has asked the run to leave. Only the guard lets it reach the end of its step,
    so that whatever is raised until then is no fault of the script's: a worker that got the same
    signal has ended, another rank has left."""

    def step(self, phase: str) -> int:
        """The number of the step that was not completed, counted from 0."""
        after = self.in_body and phase in ("step", "user")
        return max(self.steps - after, 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception, where it was raised and what the training was doing."""

    error: BaseException
    moment: FailureMoment
    thread: str | None = None
    stack: Sequence[Location] = field(default=())
    """The frames of the exception, innermost first."""

    @property
    def place(self) -> Location | None:
        """The innermost line of the user's code."""
        return find_user_location(self.stack)

    @property
    def phase(self) -> str:
        """What the loop was doing."""
        return find_phase(self.stack)

    @property
    def step(self) -> int:
        """The number of the step that was not completed."""
        return self.moment.step(self.phase)

    def facts(self) -> dict[str, Any]:
        """The facts that all events about an exception have."""
        place, text = self.place, str(self.error)
        return {
            "error": describe_error(self.error),
            "error_type": type(self.error).__name__,
            "text": text[:MAX_TEXT],
            "place": {} if place is None else place.to_dict(),
            "line_text": None if place is None else read_line(place),
            "frame": [] if place is None else read_code_frame(place),
            "phase": self.phase,
            "batch": list(self.moment.batch),
            "tensors": find_line_tensors(self.error, place),
            "sample": self.moment.sample,
            "thread": self.thread,
        }


Recognised: TypeAlias = tuple[str, dict[str, Any]]
"""The kind of an event and its facts."""
Recogniser: TypeAlias = Callable[[Failure], "Recognised | None"]
RECOGNISERS: list[str] = [
    "headway.guard.endings.lost_rank:recognise_lost_rank",
    "headway.guard.endings.device_assert:recognise_device_assert",
    "headway.guard.endings.out_of_memory:recognise_out_of_memory",
    "headway.guard.endings.loader_failure:recognise_loader_failure",
    "headway.guard.endings.save_failure:recognise_save_failure",
]
"""`module:function` of each kind, imported when a run fails. They are asked in turn; the first
answer is recorded instead of a crash."""


RESERVE = 64 << 20
"""Bytes of address space that are kept for recording that the memory of the host ran out. They are
never touched, so they need no memory."""
_reserve: list[mmap.mmap] = []


def keep_reserve() -> None:
    """Keep address space for `record_failure`; once per process is enough."""
    with suppress(OSError, ValueError):
        if not _reserve:
            _reserve.append(mmap.mmap(-1, RESERVE))


def release_reserve() -> None:
    """Give the address space back."""
    while _reserve:
        _reserve.pop().close()


def record_failure(
    recorder: Recorder,
    error: BaseException,
    moment: FailureMoment,
    *,
    thread: str | None = None,
    stack: Sequence[Location] | None = None,
) -> None:
    """Record that an exception has ended the run; only the first one counts.

    `stack`: its frames, innermost first, if it has no traceback.
    """
    if device_memory.is_host_out_of_memory(error):
        release_reserve()
    with worker_signals_ignored():
        _record(recorder, Failure(error, moment, thread, stack or read_stack(error)))


def _record(recorder: Recorder, failure: Failure) -> None:
    ending, error = recorder.ending, failure.error
    if ending.status != "finished" or type(error).__name__ in NOT_FAILURES:
        return
    number = find_signal(error)
    if number is None and isinstance(error, Exception):
        number = failure.moment.asked
    if number is not None:
        place = failure.place
        recorder.interrupted(
            failure.step,
            number,
            place={} if place is None else place.to_dict(),
            phase=failure.phase,
        )
        return
    ending.exit = find_exit_status(error)
    if ending.exit == 0:
        return
    cause = find_handled(error) or failed_part(error) or find_raised_part(error)
    if cause is not None:
        error = cause
        failure = replace(failure, error=cause, stack=[*read_stack(cause), *failure.stack])
    ending.status = "failed"
    if isinstance(error, TrainingHalted):  # the finding that made the guard halt says why
        return
    ending.error = describe_error(error)
    kind, facts = _recognise(failure) or (CRASH, failure.facts())
    recorder.event(failure.step, kind, facts)
    ending.error = None


@contextmanager
def worker_signals_ignored() -> Iterator[None]:
    """No exception about a dead DataLoader worker is raised in here.

    The handler that torch installs raises one wherever the main thread happens to be, again at
    every worker that ends.
    """
    number = getattr(signal, "SIGCHLD", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(number, before)


def _recognise(failure: Failure) -> Recognised | None:
    for name in RECOGNISERS:
        module, _, function = name.partition(":")
        ask: Recogniser = getattr(importlib.import_module(module), function)
        try:
            found = ask(failure)
        except Exception:  # ours: the crash is recorded all the same
            logger.debug("%s failed", name, exc_info=True)
            continue
        if found is not None:
            return found
    return None


def find_signal(error: BaseException) -> int | None:
    """The signal that an exception stands for; None if it stands for none."""
    if isinstance(error, KeyboardInterrupt):
        return int(signal.SIGINT)
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        number = error.code - 128
        return number if number in STOPPING_SIGNALS else None
    return INTERRUPTIONS.get(type(error).__name__)


def find_handled(error: BaseException) -> Exception | None:
    """The exception that a script was handling when it exited: `except …: sys.exit(1)`."""
    if not isinstance(error, SystemExit):
        return None
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return before if isinstance(before, Exception) else None


def find_raised_part(error: BaseException) -> BaseException | None:
    """The first exception of a group that was raised at a line of the user's: a `TaskGroup`
    raises the group itself in code of its own."""
    parts = getattr(error, "exceptions", None)
    if not isinstance(parts, tuple):
        return None
    for part in parts:
        if not isinstance(part, BaseException):
            return None
        found = find_raised_part(part) or part
        if found.__traceback__ is not None and find_user_location(read_stack(found)) is not None:
            return found
    return None


def find_exit_status(error: BaseException) -> int:
    """The exit status of a script that this exception ends, as Python sets it."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    number = find_signal(error)
    return 1 if number is None else 128 + number


def describe_error(error: BaseException) -> str:
    """`ValueError: …`, on one line."""
    if isinstance(error, SystemExit):
        return f"SystemExit: the script exited with {error.code!r}"
    if original := original_error(error):
        return _shorten(original.splitlines()[0])
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return f"{type(error).__name__}: {_shorten(lines[0])}"


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE].rsplit(' ', 1)[0]} …"


def read_stack(error: BaseException) -> list[Location]:
    """The frames of an exception, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    stack = [Location(item.filename, item.lineno or 0, item.name) for item in reversed(frames)]
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, _STOPS):
        # Raised where the generator is used; it ended at the line that raised StopIteration.
        stack = [*read_stack(error.__cause__), *stack]
    stack = [*compiled_frames(error), *stack]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        stack.insert(0, Location(error.filename, error.lineno, None))
    return stack


def find_phase(stack: Sequence[Location]) -> str:
    """What the loop was doing, from the libraries' frames between the error and the user's loop."""
    return find_stack_phase((frame.file, frame.function or "") for frame in stack) or "user"


def read_line(place: Location) -> str | None:
    """The text of a line."""
    return linecache.getline(place.file, place.line).strip() or None


def read_code_frame(place: Location) -> list[str]:
    """The lines around a line, numbered, with a mark at the line itself."""
    if is_installed_file(place.file):
        return []
    first = max(place.line - LINES_AROUND, 1)
    shown = []
    for number in range(first, place.line + LINES_AROUND + 1):
        text = linecache.getline(place.file, number).rstrip("\n")
        if text or number == place.line:
            mark = ">" if number == place.line else " "
            shown.append(f"{mark} {number:>4} | {text}"[:200])
    return shown


# The tensors that the line of an exception uses, from the frame that raised it. A loop without a
# DataLoader shows no batches; its variables still say what it was working on.

MAX_TENSORS = 8
LINES_BELOW = 4
"""Lines of a call that is written over several lines."""
_NAMES = re.compile(r"(?<![\w.])(?:self\.)?[A-Za-z_]\w*")


def find_line_tensors(error: BaseException, place: Location | None) -> list[dict[str, Any]]:
    """Name, shape and dtype of each tensor on the line, as `BatchTensor` facts."""
    frame = None if place is None else _frame_at(error, place)
    if place is None or frame is None:
        return []
    found: dict[str, dict[str, Any]] = {}
    for name in _NAMES.findall(_statement(place)):
        tensor = _look_up(frame, name)
        if tensor is not None and name not in found and len(found) < MAX_TENSORS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            found[name] = {"name": name, "shape": list(tensor.shape), "dtype": dtype}
    return list(found.values())


def _frame_at(error: BaseException, place: Location) -> FrameType | None:
    found, trace = None, error.__traceback__
    while trace is not None:
        if (trace.tb_frame.f_code.co_filename, trace.tb_lineno) == (place.file, place.line):
            found = trace.tb_frame
        trace = trace.tb_next
    return found


def _statement(place: Location) -> str:
    """The line, and those that follow until its brackets are closed."""
    text = ""
    for number in range(place.line, place.line + LINES_BELOW + 1):
        text += linecache.getline(place.file, number).partition("#")[0]
        if text.count("(") <= text.count(")"):
            break
    return text


def _look_up(frame: FrameType, name: str) -> torch.Tensor | None:
    owner, _, attribute = name.rpartition(".")
    value = frame.f_locals.get(owner or attribute)
    if owner:  # of its own attributes only: a property may compute
        kept = getattr(value, "__dict__", {})
        value = kept.get(attribute, kept.get("_buffers", {}).get(attribute))
    return value if isinstance(value, torch.Tensor) else None
