"""Runs work in a forked child that cannot affect this process.

The child has a copy of all memory. Of open files it has its own positions; pipes and sockets are
replaced, so nothing that this process waits for is consumed. It cannot write, rename or remove
files, connect to anything or start processes; `torch.save` does nothing there.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

OPEN_FILES = "/proc/self/fd"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = ("shutil.", "socket.", "subprocess.", "sqlite3.", "ftplib.", "smtplib.")
_CHANGES = "remove rename rmdir mkdir link symlink truncate chmod chown utime setxattr"
_PROCESSES = "system exec fork forkpty posix_spawn spawn kill killpg"
FORBIDDEN_CALLS = frozenset(f"os.{name}" for name in f"{_CHANGES} {_PROCESSES}".split())
"""Audit events that the child answers with an error."""


BUSY = 6.0
"""A child that computes on a busy machine may take this many times as long."""
LOOK_S = 2.0
"""Seconds between two looks at the processor time of a child that is late."""


def run_isolated(work: Callable[[], bytes], seconds: float) -> bytes:
    """The result of `work()` in a child; empty if it raises, takes too long or cannot be isolated.

    Too long is `seconds` of processor time, or of waiting for something else.
    """
    if sys.platform != "linux" or not os.path.isdir(OPEN_FILES):
        return b""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads: DataLoader workers are forked all the same
        child = os.fork()
    if child == 0:
        _be_the_child(work, theirs)
    os.close(theirs)
    try:
        return _read(ours, child, seconds)
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _read(source: int, child: int, seconds: float) -> bytes:
    """Everything up to the end; empty if that does not come in time."""
    parts: list[bytes] = []
    ready = select.poll()  # `select` itself refuses descriptors from 1,024 on
    ready.register(source)
    began = time.monotonic()
    until, used = began + seconds, 0.0
    while True:
        if ready.poll(max(0.0, until - time.monotonic()) * 1000):
            part = os.read(source, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
        elif time.monotonic() >= until:
            before, used = used, _processor_time(child)
            if not before < used < seconds or until > began + BUSY * seconds:
                return b""
            until = time.monotonic() + LOOK_S


def _processor_time(child: int) -> float:
    """Seconds that a process has computed; 0 where that cannot be read."""
    try:
        with open(f"/proc/{child}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _be_the_child(work: Callable[[], bytes], answer: int) -> None:
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _isolate(answer)
        torch.set_num_threads(1)  # the threads of the parent are not here
        gc.disable()  # a collection would write to, and so copy, all memory of the parent
        torch.save = lambda *_, **__: None  # it may open its file outside of Python
        sys.addaudithook(_forbid)
        result = work()
        while result:
            result = result[os.write(answer, result) :]
    finally:
        os._exit(0)


def _forbid(event: str, given: tuple[Any, ...]) -> None:
    written = event == "open" and isinstance(given[2], int) and given[2] & WRITING
    if written or event in FORBIDDEN_CALLS or event.startswith(FORBIDDEN):
        raise PermissionError(f"not in this process: {event}")


def _isolate(kept: int) -> None:
    """Own positions in files, and no pipe, socket or terminal."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir(OPEN_FILES)):
        if number in (kept, nowhere):
            continue
        with suppress(OSError):
            kind = os.fstat(number).st_mode
            if stat.S_ISREG(kind):
                at = os.lseek(number, 0, os.SEEK_CUR)
                again = os.open(f"{OPEN_FILES}/{number}", os.O_RDONLY)
                os.lseek(again, at, os.SEEK_SET)
                os.dup2(again, number)
                os.close(again)
            elif number <= 2 or not stat.S_ISCHR(kind):
                os.dup2(nowhere, number)
