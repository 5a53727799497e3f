"""The heartbeat of a process that trains: its last step and phase, readable after it was killed.

Each rank maps one page of `heartbeat.rank<R>.bin` into memory. Writing to the map needs no system
call, and the kernel keeps the page when the process ends, in whatever way.

    writer = HeartbeatWriter.open(run_dir, rank=0, segment=0)
    writer.beat(steps)                      an optimizer steps: 0.3 µs
    writer.enter(BACKWARD)                  the phase alone, one byte
    writer.sample({...})                    the user's line and the memory, about once a second
    read_heartbeat(run_dir, rank=0)         from any process, at any time
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.rundir.run_files import Opener, open_regular_file
from headway.rundir.run_lock import LockHolder, release_in_children, start_ticks

# The page. All numbers are little-endian.
#     0     magic
#     64    steps begun (int64), wall time (float64), phase (uint8), state (uint8)
#     82    signals that arrived (uint8)
#     128   about the process: JSON, with its length before it
#     1024  the newest sample is in slot 0 or 1: one byte
#     1032  slot 0; 2560  slot 1: JSON, with its length before it
# A process may be killed while it writes. A number of the beat is then one step old at most; of the
# two slots, the one that was complete before is still named.

MAGIC = b"HWBEAT\x00\x01"
SIZE = mmap.PAGESIZE if mmap.PAGESIZE >= 4096 else 4096
_BEAT = struct.Struct("<qdBB")
_BEAT_AT, _PHASE_AT, _STATE_AT, _SIGNALS_AT = 64, 80, 81, 82
_ABOUT_AT, _SLOT_AT, _SLOTS = 128, 1024, (1032, 2560)
_LENGTH = struct.Struct("<H")
_ROOM = 1400


START, DATA, FORWARD, BACKWARD, STEP, EVALUATION, SAVE, USER = range(8)
PHASES = ("start", "data", "forward", "backward", "step", "evaluation", "save", "user")
"""What the loop is doing, by the number of the phase."""

STATES = ("running", "finished", "failed", "interrupted")
"""The state of the record, by its number; the last three mean that its end was written."""


def heartbeat_file(run_dir: Path, rank: int) -> Path:
    """The file of a rank."""
    return run_dir / f"heartbeat.rank{rank}.bin"


class HeartbeatWriter:
    """Writes the heartbeat of one rank. Without a map it does nothing."""

    def __init__(self, page: Any = None) -> None:
        self._page = page
        self._slot = 0
        release_in_children(self)

    def let_go(self) -> None:
        """Write nothing any more."""
        self._page = None

    @classmethod
    def open(cls, run_dir: Path, *, rank: int, segment: int) -> HeartbeatWriter:
        """A writer for this process. Without a heartbeat, if the file cannot be created."""
        path = heartbeat_file(run_dir, rank)
        about = {"pid": os.getpid(), "segment": segment, **describe_process(os.getpid())}
        content = bytearray(SIZE)
        content[: len(MAGIC)] = MAGIC
        _put(content, _ABOUT_AT, about, room=_SLOT_AT - _ABOUT_AT)
        # A new file in place of an old one: another process may still map that, and a map of a
        # file that gets shorter ends its process.
        temporary = path.with_name(f".{path.name}.new")
        try:
            temporary.write_bytes(content)
            with open(temporary, "r+b") as file:
                page = mmap.mmap(file.fileno(), SIZE)
            os.replace(temporary, path)
        except (OSError, ValueError):
            return cls()
        return cls(page)

    def beat(self, steps: int) -> None:
        """An optimizer begins to step; `steps` counts its step."""
        if self._page is not None:
            _BEAT.pack_into(self._page, _BEAT_AT, steps, time.time(), STEP, 0)

    def enter(self, phase: int) -> None:
        """The loop has reached this phase."""
        if self._page is not None:
            self._page[_PHASE_AT] = phase

    def sample(self, facts: Mapping[str, Any]) -> None:
        """Store facts that are collected about once a second: the user's line, the memory."""
        page = self._page
        if page is not None:
            self._slot = 1 - self._slot
            _put(page, _SLOTS[self._slot], {"time": time.time(), **facts}, room=_ROOM)
            page[_SLOT_AT] = self._slot

    def signalled(self) -> None:
        """A signal that ends the run has arrived, so the supervisor need not pass it on."""
        if self._page is not None:
            self._page[_SIGNALS_AT] = (self._page[_SIGNALS_AT] + 1) & 0xFF

    def end(self, status: str) -> None:
        """The end of the run is recorded: `finished`, `failed` or `interrupted`."""
        page, self._page = self._page, None
        if page is not None:
            page[_STATE_AT] = STATES.index(status)
            page.flush()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The heartbeat of a rank, as it was read."""

    rank: int
    steps: int
    """Optimizer steps that were begun."""
    phase: str
    time: float
    """Wall time of the last beat; 0 before the first."""
    state: str
    pid: int
    segment: int
    host: str
    process: Mapping[str, Any]
    """Identifies the process: `started` (clock ticks since boot) and `boot`."""
    signals: int
    """How many signals have arrived that end the run."""
    sample: Mapping[str, Any]
    """The last facts of `HeartbeatWriter.sample`, with their `time`; empty if there are none."""

    @property
    def step(self) -> int:
        """The number of the step in progress, counted from 0."""
        return self.step_in(self.phase)

    def step_in(self, phase: str) -> int:
        """The number of the step in progress, if the loop is in this phase."""
        return max(self.steps - (phase in ("step", "user", "save", "evaluation")), 0)

    @property
    def last_sign(self) -> float:
        """Wall time of the last beat or sample."""
        sampled = self.sample.get("time")
        return max(self.time, sampled if isinstance(sampled, (int, float)) else 0.0)

    def is_alive(self) -> bool | None:
        """Whether its process still exists; None if it ran on another computer."""
        started = self.process.get("started")
        if self.host != socket.gethostname() or not isinstance(started, int):
            return None
        return LockHolder(self.pid, self.host, started, 0.0).alive


def read_heartbeat(
    run_dir: Path, rank: int, opener: Opener = open_regular_file
) -> Heartbeat | None:
    """The heartbeat of a rank; None if there is none."""
    try:
        with opener(heartbeat_file(run_dir, rank)) as file:
            page = file.read(SIZE)
    except OSError:
        return None
    if len(page) < 4096 or page[: len(MAGIC)] != MAGIC:
        return None
    steps, when, phase, state = _BEAT.unpack_from(page, _BEAT_AT)
    about = _get(page, _ABOUT_AT)
    pid, segment = about.get("pid"), about.get("segment")
    return Heartbeat(
        rank=rank,
        steps=steps,
        phase=PHASES[min(phase, USER)],
        time=when,
        state=STATES[state] if state < len(STATES) else "running",
        pid=pid if isinstance(pid, int) else 0,
        segment=segment if isinstance(segment, int) else 0,
        host=str(about.get("host", "")),
        process=about,
        signals=page[_SIGNALS_AT],
        sample=_get(page, _SLOTS[page[_SLOT_AT] & 1]),
    )


def mark_ended(run_dir: Path, rank: int, status: str) -> None:
    """Another process has recorded the end of this rank."""
    try:
        with open(heartbeat_file(run_dir, rank), "r+b") as file:
            file.seek(_STATE_AT)
            file.write(bytes([STATES.index(status)]))
    except OSError:
        pass


def heartbeat_ranks(run_dir: Path) -> list[int]:
    """The ranks that left a heartbeat."""
    found = []
    for path in run_dir.glob("heartbeat.rank*.bin"):
        number = path.name.removeprefix("heartbeat.rank").removesuffix(".bin")
        if number.isdigit():
            found.append(int(number))
    return sorted(found)


def describe_process(pid: int) -> dict[str, Any]:
    """Identifies a process, so that a later process with the same id is not mistaken for it."""
    return {"host": socket.gethostname(), "started": start_ticks(pid)}


def _put(page: Any, at: int, facts: Mapping[str, Any], *, room: int) -> None:
    data = json.dumps(facts, default=str).encode("utf-8")
    if len(data) + _LENGTH.size > room:
        data = b"{}"
    _LENGTH.pack_into(page, at, len(data))
    page[at + _LENGTH.size : at + _LENGTH.size + len(data)] = data


def _get(page: bytes, at: int) -> Mapping[str, Any]:
    (length,) = _LENGTH.unpack_from(page, at)
    try:
        found = json.loads(page[at + _LENGTH.size : at + _LENGTH.size + length] or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
