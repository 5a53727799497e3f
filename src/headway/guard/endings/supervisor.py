"""Starts the training in a child process and outlives it; standard library only.

`headway run` and `headway check` fork before torch is imported. The child trains; the parent waits,
passes signals on, and reads the memory of the child once a second. When the child vanishes without
recording its end (SIGKILL, a segmentation fault, `os._exit`), the parent records it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.ending_facts import END, INTERRUPTED, KILLED, OUT_OF_MEMORY
from headway.guard.endings.host_memory import HostMemory, judge_kill
from headway.rundir.heartbeat import Heartbeat, mark_ended, read_heartbeat
from headway.rundir.vanished_run import (
    INTERRUPTING,
    CrashStack,
    describe_vanished,
    stack_file,
    vanished_step,
)
from headway.rundir.writer import append_events

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
GRACE_SECONDS = 0.5
"""Time in which the child shows that a signal has reached it, too: a terminal and most schedulers
send it to both, and a second one ends the child before it has saved its state."""
LOOK_SECONDS = 1.0
SI_KERNEL = 0x80
"""The origin of a signal that a key of the terminal sends, to the whole group."""
NOT_STARTED = (2, 4)
"""Exit codes of the command itself: usage, internal error."""


_child_of: list[int] = []
"""The process that supervises this one."""


def is_supervised() -> bool:
    """Whether a parent process records how this one ends."""
    return os.getppid() in _child_of


def can_supervise() -> bool:
    """Whether this process may fork: nothing else runs in it, and torch is not loaded."""
    return (
        hasattr(os, "fork")
        and hasattr(signal, "sigtimedwait")
        and threading.active_count() == 1
        and threading.current_thread() is threading.main_thread()
        and "torch" not in sys.modules
    )


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How the child ended."""

    status: int
    """The exit status for the shell: 128 plus the number of a signal."""
    recorded: bool
    """Whether the child had recorded its end itself, and printed its report."""
    run_dir: Path | None
    """The run directory; None if the child has not chosen one."""
    failed: bool
    """Whether it did not end in good order, and was not stopped on purpose."""
    steps: int = 0
    """Optimizer steps that it had begun."""


class Supervisor:
    """Runs the rest of this program in a child process, and starts it again if requested."""

    def __init__(self, rank: int, notify: Callable[[str], None]) -> None:
        """`notify` prints a line."""
        self.pid = os.getpid()
        self._rank = rank
        self._notify = notify
        self._run_dir: Path | None = None
        self._left = 0
        self._memory = HostMemory()
        """The memory of the child, read once a second."""
        self._arrived = 0
        """Signals that have arrived here since the child was started."""
        self._pipe = (-1, -1)
        self._signals = (-1, -1)
        """A pipe into which the interpreter of the child writes every signal that it handles."""
        numbers = {getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)}
        self._numbers = numbers | {signal.SIGCHLD}

    def run(self, restarts: int = 0) -> ChildEnd | None:
        """None in the child, which continues; in the parent, how the last child ended."""
        for attempt in range(1, restarts + 2):
            self._left = restarts + 1 - attempt
            ended = self._start()
            if ended is None or not ended.failed or not self._left:
                return ended
            self._notify(
                f"the script failed with status {ended.status}; starting attempt {attempt + 1} of "
                f"{restarts + 1}. It continues from a snapshot only if it calls "
                "guard.resume() or loads its own checkpoint"
            )
        raise AssertionError("the last attempt returns")

    # In the child.

    def agree_on_folder(self, folder: Path) -> Path:
        """The folder of the first attempt; in that one this folder, which the parent learns."""
        if self._run_dir is None:
            os.write(self._pipe[1], os.fsencode(folder))
        return self._run_dir or folder

    def starts_again(self, status: int) -> bool:
        """Whether another attempt follows one that ends with this status."""
        return self._left > 0 and status not in (0, *(128 + number for number in INTERRUPTING))

    # In the parent.

    def _start(self) -> ChildEnd | None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._pipe, self._signals = os.pipe(), os.pipe()
        for end in self._signals:
            os.set_blocking(end, False)
        self._arrived = 0
        # Blocked before the fork, so that no signal is lost between the two.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        child = os.fork()
        if child == 0:
            _child_of.append(self.pid)
            # Also sees a signal that the script handles itself, Ctrl-C for instance.
            signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return None
        os.close(self._pipe[1])
        os.close(self._signals[1])
        os.set_blocking(self._pipe[0], False)
        try:
            status = self._wait(child)
            return self._describe(child, status)
        finally:
            os.close(self._pipe[0])
            os.close(self._signals[0])
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _learn_folder(self) -> Path | None:
        if self._run_dir is None:
            with suppress(BlockingIOError):
                name = os.read(self._pipe[0], 1 << 16)
                self._run_dir = Path(os.fsdecode(name)) if name else None
        return self._run_dir

    def _wait(self, child: int) -> int:
        """Wait for the child and pass signals on; its wait status."""
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            arrived = self._next_signal()
            if arrived is None:
                self._memory = HostMemory.read(child)
                self._read_signals()  # of the child alone
                continue
            if arrived.si_signo == signal.SIGCHLD:
                continue
            number = arrived.si_signo
            if number == signal.SIGINT and arrived.si_code == SI_KERNEL:
                continue  # Ctrl-C: the terminal has sent it to the child as well
            self._arrived += 1
            if not self._reaches(child, number):
                os.kill(child, number)

    def _next_signal(self) -> signal.struct_siginfo | None:
        """The next signal; None if none arrives within a second."""
        arrived = signal.sigtimedwait(self._numbers, LOOK_SECONDS)
        # After a suspension for longer than that, CPython returns whatever was in its memory.
        return arrived if arrived is not None and arrived.si_signo in self._numbers else None

    def _read_signals(self) -> bytes:
        """The numbers of the signals that the child has handled since the last call."""
        try:
            return os.read(self._signals[0], 1 << 12)
        except BlockingIOError:
            return b""

    def _reaches(self, child: int, number: int) -> bool:
        """Whether the child shows within the grace time that it has got the signal, too."""
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until:
            heartbeat = self._heartbeat(child)
            if heartbeat is not None and heartbeat.signals >= self._arrived:
                return True
            if number in self._read_signals():
                return True
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True  # it has ended; `_wait` reads how
            time.sleep(GRACE_SECONDS / 20)
        return False

    def _heartbeat(self, child: int) -> Heartbeat | None:
        folder = self._learn_folder()
        found = None if folder is None else read_heartbeat(folder, self._rank)
        return found if found is not None and found.pid == child else None

    def _describe(self, child: int, status: int) -> ChildEnd:
        code = os.waitstatus_to_exitcode(status)
        number = -code if code < 0 else None
        shell = code if number is None else 128 + number
        heartbeat, folder = self._heartbeat(child), self._learn_folder()
        steps = 0 if heartbeat is None else heartbeat.steps
        if heartbeat is not None and heartbeat.state != "running":
            return ChildEnd(shell, True, folder, failed=heartbeat.state == "failed")
        if folder is None or (heartbeat is None and code in NOT_STARTED):
            return ChildEnd(shell, True, folder, failed=False)
        self._record(folder, heartbeat, code, number)
        failed = code != 0 and number not in INTERRUPTING
        return ChildEnd(shell, False, folder, failed=failed, steps=steps)

    def _memory_event(
        self, step: int, facts: dict[str, Any]
    ) -> list[tuple[int, str, dict[str, Any]]]:
        """The event that the kernel ended the child because memory ran out, if it did."""
        killed = judge_kill(self._memory, HostMemory.read())
        if killed is None:
            return []
        about: dict[str, Any] = {"memory_of": "host", "killed": killed}
        about |= {name: facts[name] for name in ("phase", "place", "memory") if name in facts}
        return [(step, OUT_OF_MEMORY, about)]

    def _record(
        self, folder: Path, heartbeat: Heartbeat | None, code: int, number: int | None
    ) -> None:
        stack = CrashStack.read(folder, self._rank)
        if not stack.frames:
            stack_file(folder, self._rank).unlink(missing_ok=True)
        facts = describe_vanished(
            heartbeat,
            stack,
            number=number,
            exit_status=code if number is None else None,
            memory=self._memory.to_dict(),
            supervised=True,
        )
        step = vanished_step(heartbeat, facts)
        if number is None and code == 0:  # `os._exit(0)` after the work is done
            kind, ended = None, "finished"
        elif number in INTERRUPTING:
            kind, ended = INTERRUPTED, "interrupted"
        else:
            kind, ended = KILLED, "failed"
        end = {"steps": facts.get("steps", 0), "status": ended}
        end |= {name: facts[name] for name in ("exit", "signal") if name in facts}
        events = [] if kind is None else [(step, kind, facts)]
        if number == signal.SIGKILL:
            events = [*self._memory_event(step, facts), *events]
        append_events(folder, self._rank, [*events, (step, END, end)])
        mark_ended(folder, self._rank, ended)
