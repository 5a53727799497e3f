"""A thread that notices when a run makes no progress, and finds out which rank the others wait for.

Once a second it compares what the guard has seen of the training with a second before. The step
itself pays nothing. Time without progress counts only while the process neither computes nor reads
nor writes, and while no other rank does. When it exceeds the run's own longest pause by far, the
watchdogs of all ranks write where they are (`rank_board.py`) and one of them reports.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.ending_facts import COLLECTIVE_MISMATCH, HANG, RANK_LOST
from headway.core.hang_facts import (
    ACTIVE,
    ENDED,
    SILENT,
    STOPPED,
    Comparison,
    RankPlace,
    compare_ranks,
    say_positions,
)
from headway.guard.endings.process_activity import ProcessActivity
from headway.guard.endings.rank_board import RankBoard
from headway.guard.endings.rank_position import describe_position, find_wait, is_collective
from headway.output.notices import Notices, logger
from headway.torch_adapters.process_state.thread_stacks import (
    ThreadStack,
    is_at_prompt,
    read_stack_of,
)

LOOK_S = 1.0
"""Seconds between two looks."""
LEAST_S = 6.0
"""Seconds without progress that never count as a hang."""
PAUSES = 3.0
"""A hang is longer than this many times the longest pause of the run."""
UNHEARD_S = 60.0
"""The minimum in seconds if some ranks do not answer: they may be evaluating."""
FIRST_STEPS = 3
"""Steps before which the usual pause is not known."""
FIRST_S = 300.0
"""Seconds without progress that are allowed before those: compiling, loading, warming up."""
ANSWER_S = 2.5
"""Seconds that the other ranks have for their answers; each looks once a second."""
RECENT_S = 3.0
"""A rank that made progress within these seconds is active."""
HUNG_STATUS = 124
"""Exit status of a process that `hang_timeout` ends, as that of `timeout`."""


@dataclass(frozen=True, slots=True)
class WatchedProgress:
    """The parts of a run that a watchdog reads. Every function may be called from its thread."""

    progress: Callable[[], Hashable]
    """A value that changes with every batch, backward pass and step; None: no run."""
    step: Callable[[], int]
    made: Callable[[], int]
    """Number of steps that this process has made; after a resume less than `step`."""
    in_loop: Callable[[], bool]
    """Whether the training loop may be running."""
    event: Callable[[int, str, Mapping[str, Any]], None]
    """Writes an event to disk."""
    end: Callable[[int], None]
    """Records that the run failed, with the exit status that the process will have."""


class Watchdog:
    """Watches one guard from a thread of its own."""

    def __init__(
        self,
        run: WatchedProgress,
        *,
        notices: Notices,
        rank: int = 0,
        size: int = 1,
        board: RankBoard | None = None,
        hang_timeout: float | None = None,
        sampled: Callable[[ThreadStack | None], None] | None = None,
    ) -> None:
        """`board`: with several ranks that share a run directory. `sampled` gets the stack of the
        training thread at every look."""
        self._run = run
        self._notices = notices
        self.rank = rank
        self._several = size > 1
        self.board = board
        self._hang_timeout = hang_timeout
        self._sampled = sampled
        self.follow(threading.get_ident())
        self._stopped = threading.Event()
        self._token: Hashable = object()
        self._last_look = time.monotonic()
        self._idle = 0.0
        """Seconds without progress of any kind."""
        self._waited = 0.0
        """Seconds since the last batch, backward pass or step."""
        self._longest = 0.0
        self._found: dict[str, Any] | None = None
        """The hang that was reported to all ranks."""
        self._reported = False
        self.why = ""
        """Why this rank fails, if it does."""
        self.victim = False
        """Whether it fails because it lost another rank."""
        self._thread = threading.Thread(target=self._watch, name="headway-watchdog", daemon=True)

    def follow(self, ident: int) -> None:
        """Look at this thread: the one that trains."""
        self._ident = ident
        self._activity = ProcessActivity(ident)

    def start(self) -> None:
        if self.board is not None:
            self.board.open()
        self._thread.start()

    def stop(self) -> None:
        """Look no longer. Does not wait for the thread."""
        self._stopped.set()

    def ended(self, status: str, steps: int) -> None:
        """The end of the run was recorded: notify the other ranks before the process ends."""
        self.stop()
        if self.board is not None:
            why = "ended normally" if status == "finished" else self.why or f"ended ({status})"
            self.board.announce(
                ENDED, step=steps, why=f"{why} after {steps} steps", victim=self.victim
            )

    def continued(self) -> None:
        """Another guard takes over because the training continues: the reported hang is over."""
        self.stop()
        if self._reported:
            self._over()
            self._reported = False

    def record(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Record an event of the run."""
        self._run.event(self._run.step(), kind, facts)

    @property
    def hangs(self) -> bool:
        """Whether a hang was reported and there was no progress since."""
        return self._reported

    @property
    def limit_s(self) -> float:
        """Seconds without progress from which on the run hangs."""
        if self._run.made() < FIRST_STEPS:
            return FIRST_S
        least = UNHEARD_S if self._several and self.board is None else LEAST_S
        return max(least, PAUSES * self._longest + LEAST_S / 2)

    def _watch(self) -> None:
        pid = os.getpid()
        while not self._stopped.wait(LOOK_S):
            if os.getpid() != pid:
                return
            try:
                if not self.look():
                    return
            except Exception:  # a defect of the watchdog must not disturb the training
                logger.debug("watchdog", exc_info=True)
                return

    def look(self) -> bool:
        """Compare with the last reading; False if the run no longer exists."""
        token = self._run.progress()
        if token is None:
            return False
        now = time.monotonic()
        # A process that was suspended does not count the time: nobody could have made progress.
        passed, self._last_look = min(now - self._last_look, 2 * LOOK_S), now
        stack = read_stack_of(self._ident)
        if self._sampled is not None:
            self._sampled(stack)
        if token != self._token:
            self._token = token
            self._progressed()
        else:
            self._wait(passed, stack)
        if self.board is not None:
            self._serve_board(self.board)
        return True

    def _progressed(self) -> None:
        if self._reported:
            self._over()
        if self._run.made() >= FIRST_STEPS:
            self._longest = max(self._longest, self._idle)
        self._idle = self._waited = 0.0
        self._found, self._reported = None, False
        self._activity.forget()

    def _wait(self, passed: float, stack: ThreadStack | None) -> None:
        self._idle += passed
        self._waited += passed
        # Looking at the process costs a little, so it begins after a pause that is not usual.
        if self._waited >= 2 * LOOK_S and (self._activity.look() or self._is_excused(stack)):
            if not self._reported:
                self._idle = 0.0
            return
        if self._reported:
            self._keep_waiting()
        elif self._idle >= self.limit_s:
            self._investigate()

    def _is_excused(self, stack: ThreadStack | None) -> bool:
        """Whether no progress is expected: no user code runs, or it waits for a person."""
        if stack is None or stack.place is None or is_at_prompt(stack):
            return True
        return not self._run.in_loop() and not is_collective(find_wait(stack.frames))

    # One rank asks the others.

    def _investigate(self) -> None:
        board = self.board
        own = self._position()
        if board is None:
            self._report(self._describe([own], Comparison("same")))
            return
        asked = board.ask()
        board.answer(own)
        answers = board.wait_for_answers(asked, ANSWER_S)
        if self._run.progress() != self._token:
            return
        answers[self.rank] = own
        states = {str(item.get("state")) for item in answers.values()}
        if STOPPED in states:
            names = [rank for rank, item in answers.items() if item.get("state") == STOPPED]
            self._notices.once(
                "suspended", f"rank {names[0]} is suspended (SIGSTOP or a debugger); others wait"
            )
        if ACTIVE in states or STOPPED in states:
            self._idle = 0.0
            return
        if SILENT in states and self._waited < UNHEARD_S:
            return
        positions = [RankPlace.read(answers[rank]) for rank in sorted(answers)]
        calls = {rank: item.get("calls") or () for rank, item in answers.items()}
        found = self._describe(list(answers.values()), compare_ranks(positions, calls))
        found["reporter"] = next(
            (item.number for item in positions if item.state not in (SILENT,) and not item.gone),
            self.rank,
        )
        board.publish(found)
        board.take_found()
        self._learn(found)

    def _serve_board(self, board: RankBoard) -> None:
        if board.is_asked():
            position = self._position()
            if self._idle < RECENT_S:
                position["state"] = ACTIVE
            board.answer(position)
        found = board.take_found()
        if found is not None and not self._reported:
            self._learn(found)

    def _learn(self, found: dict[str, Any]) -> None:
        """All ranks hang; the rank that is named in `found` reports it."""
        if found.get("reporter") == self.rank:
            self._report(found)
        self._found, self._reported = found, True

    def _position(self) -> dict[str, Any]:
        return describe_position(
            self.rank, self._run.step(), self._idle, self._ident, several=self._several
        )

    def _describe(self, answers: list[dict[str, Any]], result: Comparison) -> dict[str, Any]:
        plain = [{key: value for key, value in item.items() if key != "calls"} for item in answers]
        return {
            "idle_s": round(self._idle, 1),
            "usual_s": round(self._longest, 1),
            "limit_s": round(self.limit_s, 1),
            "ranks": plain,
            "suspects": list(result.suspects),
            "unheard": [str(item.get("why")) for item in plain if item.get("state") == SILENT],
            "kind": result.kind,
            "extra": result.extra,
        }

    # The rank that reports.

    def _report(self, found: dict[str, Any]) -> None:
        self._found, self._reported = found, True
        step = self._run.step()
        kind, extra = found.pop("kind", ""), found.pop("extra", None)
        self._run.event(step, HANG, found)
        if kind == "mismatch":
            rank = next(iter(found["suspects"]), None)
            facts = {"ranks": found["ranks"], "rank": rank, "extra": extra or {}}
            self._run.event(step, COLLECTIVE_MISMATCH, facts)
        elif kind == "lost":
            lost = [item for item in found["ranks"] if item["rank"] in found["suspects"]]
            own: dict[str, Any] = next(
                (item for item in found["ranks"] if item["rank"] == self.rank), {}
            )
            self._run.event(step, RANK_LOST, {"lost": lost, "place": own.get("place", {})})
        logger.log(
            logging.WARNING,
            "headway: no progress for %.0f s (longest pause before: %.0f s): %s",
            found["idle_s"],
            found["usual_s"],
            say_positions([RankPlace.read(item) for item in found["ranks"]]),
        )

    def _over(self) -> None:
        if self._found is not None and self._found.get("reporter", self.rank) == self.rank:
            self._run.event(self._run.step(), HANG, {"over": True, "idle_s": round(self._idle, 1)})
            logger.warning("headway: progress again after %.0f s", self._idle)

    def _keep_waiting(self) -> None:
        """Policy: wait, or end the process so that a launcher can start it again."""
        if self._hang_timeout is None or self._idle < self._hang_timeout:
            return
        found = self._found or {}
        if found.get("reporter", self.rank) == self.rank:
            still = {**found, "idle_s": round(self._idle, 1), "timed_out": True}
            self._run.event(self._run.step(), HANG, still)
        self.why = f"was ended by hang_timeout ({self._idle:.0f} s without progress)"
        self._run.end(HUNG_STATUS)
        logger.warning(
            "headway: no progress for %.0f s (hang_timeout %g s): rank %d exits with status %d",
            self._idle,
            self._hang_timeout,
            self.rank,
            HUNG_STATUS,
        )
        os._exit(HUNG_STATUS)


watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()
"""The watchdogs that were started in this process."""


def run_hangs() -> bool:
    """Whether a hang was reported in this process and there was no progress since."""
    return any(item.hangs for item in watchdogs)
