"""Between the training and a tracker: a bounded queue and a thread.

The training only ever puts a reference on the queue, which cannot wait. A tracker that is slow
fills the queue, and what does not fit is dropped and counted; one that computes much is made to
rest; one that hangs is left behind when the run ends; one that raises is given up. What was lost is
told once, and none of it is seen by a step.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from headway.core.findings import Finding
from headway.core.records import Header, Record, StepRecord
from headway.sinks.trackers.base import Tracker
from headway.sinks.trackers.numbers import row_of

ROOM = 1000
"""Steps that may wait for a tracker."""
ROOM_FOR_FINDINGS = 1000
"""Findings are few and worth more: they have places of their own."""
SHARE = 0.1
"""Of the time, that a tracker's own computing may take: while its thread runs Python, the
training's cannot. MLflow's database takes longer for a row than a small model for a step."""
CLOSE_SECONDS = 10.0
"""How long the end of a run waits for its trackers, all of them together."""

Told = Callable[[str, str], None]
"""Told (a topic, a sentence); each topic once."""


class Queued:
    """One tracker behind its queue. No method waits but `join`, and none raises."""

    def __init__(self, tracker: Tracker, name: str, told: Told, *, room: int = ROOM) -> None:
        self.name = name
        self.dropped = 0
        """Steps that did not fit in the queue, or were still in it when the run ended."""
        self._tracker = tracker
        self._told = told
        self._room = room
        self._names: Sequence[str] = ()
        self._waiting: SimpleQueue[tuple[StepRecord, Sequence[str]] | Finding | None] = (
            SimpleQueue()
        )
        self._taken = 0
        self._shown = 0
        self._over = False
        self._hurry = threading.Event()
        self._failed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name=f"headway-{name}", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """A record of the stream; steps are passed on, and headers name their columns."""
        if isinstance(record, StepRecord):
            self._taken += 1
            if self._failed or self._over:
                return
            if self._waiting.qsize() >= self._room:
                self.dropped += 1
            else:
                self._waiting.put((record, self._names))
        elif isinstance(record, Header):
            self._names = record.names("param")

    def finding(self, finding: Finding) -> None:
        """A finding."""
        full = self._waiting.qsize() >= self._room + ROOM_FOR_FINDINGS
        if not (full or self._failed or self._over):
            self._waiting.put(finding)

    def end(self) -> None:
        """Nothing more will come."""
        if not self._over:
            self._over = True
            self._waiting.put(None)
            self._hurry.set()

    def join(self, until: float) -> None:
        """Wait for the tracker until this moment of the monotonic clock, then leave it behind."""
        if os.getpid() != self._process:
            return  # a fork: the thread, and the run, are the parent's
        self._thread.join(max(until - time.monotonic(), 0.0))
        hangs = self._thread.is_alive() and not self._failed
        if hangs:
            self._failed = True  # whatever it is busy with is the last thing it does
            self.dropped = self._taken - self._shown
        if self.dropped:
            self._told(
                f"tracker-dropped-{self.name}",
                f"the tracker {self.name} could not keep up: {self.dropped} of {self._taken} "
                "steps were not passed on to it; training did not wait for them",
            )
        elif hangs:
            self._told(
                f"tracker-hangs-{self.name}",
                f"the tracker {self.name} did not come to an end and was left behind",
            )

    def _work(self) -> None:
        try:
            while not self._failed:
                item = self._waiting.get()
                if item is None:
                    self._tracker.close()
                    return
                began = time.thread_time()
                if isinstance(item, Finding):
                    self._tracker.finding(item)
                else:
                    self._tracker.step(row_of(*item))
                    self._shown += 1
                self._hurry.wait((time.thread_time() - began) * (1 / SHARE - 1))
        except BaseException as error:  # whatever it is, the training must not hear more of it
            if not self._failed:
                self._failed = True
                first = (str(error).splitlines() or [""])[0]
                self._told(
                    f"tracker-raised-{self.name}",
                    f"the tracker {self.name} failed ({type(error).__name__}: {first}) after "
                    f"{self._shown} steps and is given up; training goes on without it",
                )


class Trackers:
    """All trackers of a run."""

    def __init__(self, queues: Sequence[Queued]) -> None:
        self.queues = queues
        # Trackers end their runs at exit, those opened last first: before them, ours is asked.
        atexit.register(self.close)

    def close(self, seconds: float | None = None) -> None:
        """Let them show what still waits; after `CLOSE_SECONDS` they are left behind."""
        for queue in self.queues:
            queue.end()
        until = time.monotonic() + (CLOSE_SECONDS if seconds is None else seconds)
        for queue in self.queues:
            queue.join(until)
        self.queues = ()
        atexit.unregister(self.close)
