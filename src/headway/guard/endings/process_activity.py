"""Whether this process, or a process that it started, computes, reads or writes just now.

A long evaluation, a save or a first compilation takes no optimizer step, but it uses the processor
or the disk. A thread that waits in a collective, in a lock or for a stuck worker does neither.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from headway.torch_adapters.process_state.thread_stacks import fingerprint_stack

BUSY_SHARE = 0.2
"""Share of one core above which a process is busy."""
BUSY_BYTES = 1 << 18
"""Bytes read or written per second above which a process is busy."""
MAX_CHILDREN = 256
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(slots=True)
class _Reading:
    at: float
    own_s: float
    children_s: dict[int, float]
    transferred: int
    stack: tuple[object, ...]


class ProcessActivity:
    """Compares the use of processor and disk with that at the last look."""

    def __init__(self, ident: int) -> None:
        """`ident`: the thread that trains."""
        self._ident = ident
        self._native = _native_id(ident)
        self._last: _Reading | None = None

    def forget(self) -> None:
        """The next look has nothing to compare with."""
        self._last = None

    def look(self) -> bool:
        """Whether the process was active since the last look; the first look says no."""
        now = _Reading(
            time.monotonic(),
            time.process_time(),
            {pid: cpu_seconds(_PROC / str(pid)) for pid in descendants(os.getpid())},
            _transferred_bytes(),
            fingerprint_stack(self._ident),
        )
        before, self._last = self._last, now
        if before is None:
            return False
        seconds = max(now.at - before.at, 1e-3)
        if any(
            used - before.children_s.get(pid, used) > BUSY_SHARE * seconds
            for pid, used in now.children_s.items()
        ):
            return True
        if now.transferred - before.transferred > BUSY_BYTES * seconds:
            return True
        # A thread that waits for a GPU spins: it is busy only if its Python code moves.
        if torch.cuda.is_initialized() and now.stack == before.stack:
            return False
        share = (now.own_s - before.own_s) / seconds
        return share > BUSY_SHARE or _state(_PROC / "self" / "task" / str(self._native)) == "R"


def is_stopped(pid: int) -> bool:
    """Whether a process of this host is suspended by a signal or traced by a debugger."""
    return _state(_PROC / str(pid)) in ("T", "t")


def _native_id(ident: int) -> int:
    found = [thread.native_id for thread in threading.enumerate() if thread.ident == ident]
    return (found[0] if found else None) or os.getpid()


def _fields(folder: Path) -> list[str]:
    """The fields of `stat` from the state on; empty where there is no /proc."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(folder: Path) -> str:
    fields = _fields(folder)
    return fields[0] if fields else ""


def cpu_seconds(folder: Path) -> float:
    """Processor time of the process with this folder of /proc."""
    fields = _fields(folder)
    return (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else 0.0


def descendants(pid: int) -> list[int]:
    """Processes that this one has started, and theirs."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < MAX_CHILDREN:
        folder = _PROC / str(waiting.pop()) / "task"
        try:
            listed = [(task / "children").read_text().split() for task in folder.iterdir()]
        except OSError:
            continue
        children = [int(child) for names in listed for child in names]
        found += children
        waiting += children
    return found


def _transferred_bytes() -> int:
    try:
        lines = (_PROC / "self" / "io").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in lines if ": " in line)
    return int(counts.get("rchar", 0)) + int(counts.get("wchar", 0))
