"""Describes a process that ended without recording its end: its heartbeat stopped.

The supervisor of `headway run` writes this as an event. Without one, the reader of the run
directory adds the same event from the heartbeat and the stack that faulthandler left.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.ending_facts import END, KILLED
from headway.core.records import EventRecord, Record
from headway.rundir.heartbeat import Heartbeat, heartbeat_ranks, read_heartbeat
from headway.rundir.run_files import Opener, open_regular_file

STALE_SECONDS = 1800.0
"""Seconds without a heartbeat after which a process on another computer counts as ended. A page of
a network file system may reach the disk late."""
LONGEST_STACK = 1 << 18
MAX_FRAMES = 40
INTERRUPTING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals of users and schedulers, as opposed to a fault of the process."""
RECORDED_ENDS = (END, KILLED)
"""Events after which the end of a rank is known."""
_FATAL = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""The first line of a stack that faulthandler writes, and the signal it stands for."""
_OWN = f"{Path(__file__).parents[1].as_posix()}/"
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+)(?: in (?P<function>.*))?$')


def stack_file(run_dir: Path, rank: int) -> Path:
    """Where faulthandler writes the stack of a rank that crashes."""
    return run_dir / f"stack.rank{rank}.txt"


@dataclass(frozen=True, slots=True)
class CrashStack:
    """The stack that faulthandler wrote when the process crashed."""

    signal: int | None = None
    frames: tuple[tuple[str, int, str], ...] = ()
    """(file, line, function), innermost first: of the thread that crashed; of the one that runs the
    user's code where that was a thread of native code (gloo aborts in one)."""

    @classmethod
    def read(cls, run_dir: Path, rank: int, opener: Opener = open_regular_file) -> CrashStack:
        """The stack of a rank; empty if there is none."""
        try:
            with opener(stack_file(run_dir, rank)) as file:
                lines = file.read(LONGEST_STACK).decode("utf-8", "replace").splitlines()
        except OSError:
            return cls()
        number = None
        crashed: list[tuple[str, int, str]] = []
        others: list[list[tuple[str, int, str]]] = []
        frames = crashed
        for line in lines:
            if line.startswith("Fatal Python error: "):
                name = _FATAL.get(line.removeprefix("Fatal Python error: ").strip())
                number = getattr(signal, name, None) if name else None
            if line.startswith(("Current thread ", "Stack ")):
                frames = crashed
            elif line.startswith("Thread "):
                frames = []
                others.append(frames)
            match = _FRAME.match(line)
            if match and len(frames) < MAX_FRAMES:
                frames.append((match["file"], int(match["line"]), match["function"] or "?"))
        found = tuple(crashed) or _users_thread(others)
        return cls(None if number is None else int(number), found)

    @property
    def phase(self) -> str | None:
        """What the loop was doing when it crashed; None where the stack does not say."""
        return find_stack_phase(((file, function) for file, _, function in self.frames))

    def user_frame(self) -> tuple[str, int, str] | None:
        """The innermost frame that is neither Python's nor an installed package's."""
        return next((frame for frame in self.frames if is_users_file(frame[0])), None)


def _users_thread(stacks: list[list[tuple[str, int, str]]]) -> tuple[tuple[str, int, str], ...]:
    """The first of these stacks with a line of the user's; the main thread is written last."""
    found = (stack for stack in reversed(stacks) if any(is_users_file(file) for file, *_ in stack))
    return tuple(next(found, ()))


_BACKWARD = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
_PHASES = (
    ("torch/utils/data/", "data"),
    ("torch/optim/", "step"),
    ("torch/nn/modules/module.py", "forward"),
)


def find_stack_phase(frames: Iterable[tuple[str, str]]) -> str | None:
    """What the loop was doing, by the frames of libraries between the innermost and the loop.

    `frames`: file and function, innermost first. None if it was in code of the user's own.
    """
    for file, function in frames:
        path = file.replace("\\", "/")
        if path.endswith(_BACKWARD):
            return "backward"
        for part, phase in _PHASES:
            if part in path:
                return phase
        if function in ("forward", "backward") and is_users_file(path):
            return function
    return None


def is_users_file(file: str) -> bool:
    """Whether a file is the user's own, judging by its path."""
    path = file.replace("\\", "/")
    version = f"/lib/python{sys.version_info.major}."
    installed = ("/site-packages/", "/dist-packages/", version, _OWN)
    return not path.startswith("<") and not any(part in path for part in installed)


def describe_vanished(
    heartbeat: Heartbeat | None,
    stack: CrashStack,
    *,
    number: int | None = None,
    exit_status: int | None = None,
    memory: Mapping[str, Any] | None = None,
    supervised: bool = False,
) -> dict[str, Any]:
    """The facts of a `killed` event."""
    sample = heartbeat.sample if heartbeat is not None else {}
    frame = stack.user_frame()
    if frame is not None:
        place: dict[str, Any] = dict(zip(("file", "line", "function"), frame, strict=True))
    else:
        place = {name: sample[name] for name in ("file", "line", "function") if name in sample}
    facts = {
        "signal": number if number is not None else stack.signal,
        "exit": exit_status,
        "steps": None if heartbeat is None else heartbeat.steps,
        "phase": _vanished_phase(heartbeat, stack),
        "place": place,
        "stack": [f"{file}:{line} in {function}" for file, line, function in stack.frames],
        "memory": dict(memory or {}),
        "last_sign": None if heartbeat is None else heartbeat.last_sign,
        "supervised": supervised,
    }
    return {name: value for name, value in facts.items() if value is not None}


def vanished_step(heartbeat: Heartbeat | None, facts: Mapping[str, Any]) -> int:
    """The step of a `killed` event with these facts, counted from 0."""
    return 0 if heartbeat is None else heartbeat.step_in(str(facts.get("phase")))


def _vanished_phase(heartbeat: Heartbeat | None, stack: CrashStack) -> str:
    if heartbeat is None:
        return "start"
    # A loop without a DataLoader does not show that its next step has begun; the stack does.
    begun = stack.phase if heartbeat.phase == "user" else None
    return begun if begun in ("data", "forward", "backward") else heartbeat.phase


class StreamEnd:
    """The last position of a stream of records, and the ranks whose end is in it."""

    def __init__(self) -> None:
        self.segment = 0
        self.seq = 0
        self._recorded: set[int] = set()

    def add(self, record: Record) -> None:
        """Another record, in order."""
        if record.segment != self.segment:
            self.segment = record.segment
            self._recorded.clear()
        self.seq = record.seq
        if type(record) is EventRecord and record.kind in RECORDED_ENDS:
            self._recorded.add(record.rank)

    def unrecorded(self, run_dir: Path, opener: Opener) -> Iterator[EventRecord]:
        """An event for every rank whose process ended without recording it."""
        for rank in heartbeat_ranks(run_dir):
            if rank in self._recorded:
                continue
            heartbeat = read_heartbeat(run_dir, rank, opener)
            if heartbeat is None or heartbeat.state != "running":
                continue
            if heartbeat.segment >= self.segment and _is_gone(heartbeat, run_dir):
                self.seq += 1
                facts = describe_vanished(heartbeat, CrashStack.read(run_dir, rank, opener))
                step = vanished_step(heartbeat, facts)
                yield EventRecord(self.segment, self.seq, step, KILLED, facts, rank=rank)


def _is_gone(heartbeat: Heartbeat, run_dir: Path) -> bool:
    alive = heartbeat.is_alive()
    if alive is not None:
        return not alive
    signs = [heartbeat.last_sign]
    for path in run_dir.glob("*.jsonl"):
        try:
            signs.append(path.stat().st_mtime)
        except OSError:
            continue
    return time.time() - max(signs) > STALE_SECONDS
