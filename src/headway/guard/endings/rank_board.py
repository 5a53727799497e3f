"""Files in the run directory through which the watchdogs of all ranks learn each other's position.

A stuck process group cannot be used to communicate. Every rank keeps one file; a watchdog that asks
touches `request`, and every watchdog writes its position when it looks next.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.core.hang_facts import ACTIVE, DEAD, ENDED, SILENT, STOPPED
from headway.guard.endings.fatal_stack import keep_fatal_stack, read_fatal_stack
from headway.guard.endings.process_activity import is_stopped
from headway.guard.endings.rank_position import find_wait, is_collective
from headway.rundir.heartbeat import describe_process
from headway.rundir.vanished_run import stack_file

REQUEST, FOUND = "request", "found.json"


class RankBoard:
    """The positions of all ranks of one segment, seen from one of them."""

    def __init__(self, run_dir: Path, segment: int, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._run_dir = run_dir
        self._folder = run_dir / "watch" / f"segment{segment}"
        self._answered = 0.0
        self._found_at = 0.0
        self._who = {"rank": rank, "pid": os.getpid(), **describe_process(os.getpid())}

    def open(self) -> None:
        """Begin: write who this rank is, and keep its stacks if a fatal signal ends it."""
        self.announce()
        keep_fatal_stack(self._folder / self._fatal(self.rank))

    def announce(self, state: str = ACTIVE, **more: Any) -> None:
        """Write who this rank is; `ended` before its process may go."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(self._file(self.rank), {**self._who, "state": state, **more})

    def ask(self) -> float:
        """Ask every rank for its position; the time of the request on the disk's clock."""
        with suppress(OSError):
            (self._folder / REQUEST).touch()
        return self._modified(REQUEST)

    def is_asked(self) -> bool:
        """Whether a request waits for the answer of this rank."""
        return self._modified(REQUEST) > self._answered

    def answer(self, position: Mapping[str, Any]) -> None:
        """Write the position of this rank."""
        asked = self._modified(REQUEST)
        with suppress(OSError):
            self._write(self._file(self.rank), {**self._who, **position})
            self._answered = asked

    def wait_for_answers(self, asked: float, seconds: float) -> dict[int, dict[str, Any]]:
        """What each rank says about itself; those that do not answer are looked at from outside."""
        deadline = time.monotonic() + seconds
        missing = set(range(self.size))
        while missing:
            missing = {rank for rank in missing if self._modified(self._file(rank)) < asked}
            if time.monotonic() > deadline or not (missing - self._known_gone(missing)):
                break
            time.sleep(0.1)
        return {rank: self._read(rank, asked) for rank in range(self.size)}

    def publish(self, found: Mapping[str, Any]) -> None:
        """Report the result to all ranks."""
        with suppress(OSError):
            self._write(FOUND, found)

    def take_found(self) -> dict[str, Any] | None:
        """What another rank has published since the last look."""
        modified = self._modified(FOUND)
        if modified <= self._found_at:
            return None
        self._found_at = modified
        return self._load(FOUND)

    def _known_gone(self, ranks: set[int]) -> set[int]:
        """Of these, the ranks that will not answer: waiting for them is of no use."""
        return {rank for rank in ranks if self.look_at(rank)["state"] in (DEAD, ENDED)}

    def _read(self, rank: int, asked: float) -> dict[str, Any]:
        if self._modified(self._file(rank)) >= asked:
            return self._load(self._file(rank)) or self.look_at(rank)
        return self.look_at(rank)

    def look_at(self, rank: int) -> dict[str, Any]:
        """What can be said about a rank without asking it."""
        known = self._load(self._file(rank))
        if known is None:
            return {"rank": rank, "state": SILENT, "why": "it wrote nothing to this run directory"}
        if known.get("state") == ENDED:
            return known
        base = {"rank": rank, "step": known.get("step")}
        pid = known.get("pid")
        if known.get("host") != self._who["host"] or not isinstance(pid, int):
            return {**base, "state": SILENT, "why": f"no answer from {known.get('host')}"}
        if describe_process(pid)["started"] != known.get("started"):
            return {**base, "state": DEAD, **self._last_words(rank, pid)}
        if is_stopped(pid):
            return {**base, "state": STOPPED, "why": f"process {pid} is suspended"}
        return {**base, "state": SILENT, "why": f"process {pid} runs, but no Python code in it"}

    def _last_words(self, rank: int, pid: int) -> dict[str, Any]:
        own, run = self._folder / self._fatal(rank), stack_file(self._run_dir, rank)
        stack = read_fatal_stack(own) or read_fatal_stack(run)  # the second under `headway run`
        place = stack.place if stack is not None else None
        if stack is None or place is None:
            return {"why": f"died (its process {pid} does not exist)"}
        within = find_wait(stack.frames)
        return {
            "why": "was ended by a fatal signal",
            "place": place.to_dict(),
            "line_text": place.source[:120],
            "within": within,
            "within_collective": is_collective(within),
            "stack": stack.describe(),
        }

    def _fatal(self, rank: int) -> str:
        return f"rank{rank}.fatal.txt"

    def _file(self, rank: int) -> str:
        return f"rank{rank}.json"

    def _modified(self, name: str) -> float:
        try:
            return (self._folder / name).stat().st_mtime
        except OSError:
            return 0.0

    def _load(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self._folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _write(self, name: str, data: Mapping[str, Any]) -> None:
        temporary = self._folder / f".{name}.rank{self.rank}"
        temporary.write_text(json.dumps(data, default=str), encoding="utf-8")
        os.replace(temporary, self._folder / name)
