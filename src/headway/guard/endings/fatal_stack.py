"""The Python stacks of a process at a fatal signal (SIGSEGV, SIGABRT, …), kept in a file.

gloo aborts a rank whose collective does not fit that of another rank; nothing can be recorded then
except by the handlers of `faulthandler`.
"""

from __future__ import annotations

import faulthandler
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from headway.rundir.vanished_run import stack_file
from headway.torch_adapters.frames import Location
from headway.torch_adapters.process_state.thread_stacks import ThreadStack

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_open: list[IO[Any]] = []
"""The file that `faulthandler` writes to: it must stay open."""


def keep_fatal_stack(path: Path) -> None:
    """Write the stacks to this file if a fatal signal ends the process.

    A handler that the user has installed stays as it is.
    """
    if faulthandler.is_enabled() and not _open:
        return
    try:
        file = path.open("w", encoding="utf-8")
        faulthandler.enable(file=file, all_threads=True)
    except (OSError, ValueError, RuntimeError):
        return
    _open.append(file)
    while len(_open) > 1:
        _open.pop(0).close()


def read_fatal_stack(path: Path) -> ThreadStack | None:
    """The stack of the thread that ran the user's code; None if no fatal signal was received."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    stacks = [_read_thread(part) for part in re.split(r"\n\n|(?=Thread 0x)", text)]
    return next((stack for stack in stacks if stack.frames and stack.place is not None), None)


def _read_thread(text: str) -> ThreadStack:
    found = [match for line in text.splitlines() if (match := _FRAME.match(line))]
    frames = [Location(at["file"], int(at["line"]), at["function"]) for at in found]
    return ThreadStack(0, "", frames)


@contextmanager
def write_crash_stack(run_dir: Path | None, rank: int) -> Iterator[None]:
    """Write the stack into the run directory if the process crashes in here.

    A faulthandler that the user has enabled stays as it is.
    """
    if run_dir is None or faulthandler.is_enabled():
        yield
        return
    path = stack_file(run_dir, rank)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - faulthandler keeps its number
    except OSError:
        yield
        return
    faulthandler.enable(file=file)
    try:
        yield
    finally:
        faulthandler.disable()
        file.close()
        if not path.stat().st_size:
            path.unlink()
