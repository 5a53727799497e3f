"""Turns numbers into records, findings and actions; writes the run directory and feeds trackers."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import registry
from headway.config import Settings
from headway.core.ending_facts import END, ENDING, INTERRUPTED, RunEnding
from headway.core.findings import Finding, Severity
from headway.core.incident_events import INCIDENT
from headway.core.numbers import ordinal
from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Record,
    SetupRecord,
    StepRecord,
    TensorRecord,
)
from headway.core.signals import Signal
from headway.engine import Engine
from headway.errors import UsageError
from headway.guard.measure.sampling import FULL_SAMPLING, SamplingPlan, sampled_signals
from headway.output.notices import Notices, logger
from headway.policy import Action, Ladder, Policy, Rung, StepVerdict
from headway.rerun import in_script
from headway.rundir.heartbeat import HeartbeatWriter
from headway.rundir.remote_run import RunFolder, StoredRun, fetch_run
from headway.rundir.run_files import is_url, local_path
from headway.rundir.writer import RunDirWriter

if TYPE_CHECKING:
    from headway.torch_adapters.process_groups.rank_group import RankGroup


# Every record gets a place in the stream, goes to the run directory and to the checks. A
# post-mortem reads from the run directory, record by record, what the live engine received.
# Good steps wait for one another: a good step needs no decision, and checks that run in turn
# on several records cost less than all of them on one record after the other.

ALWAYS = ("grad_norm", "lr", "grads_carried", "grad_nonfinite_tensors", "step_time_s")
"""Measured at every step: where a record has no value, it is zero."""
WITH_SCALER = ("loss_scale", "scaler_skipped")
LOCK_SECONDS = 2.0
"""Seconds that another thread waits for its turn to record."""
BLOCK_STEPS, BLOCK_SECONDS = 16, 0.25
"""Good steps are passed on together, at the latest after this number and this time; one by one
where something listens to each record."""


class Recorder:
    """Records, findings and actions of one guard."""

    def __init__(
        self,
        *,
        settings: Settings,
        policy: Policy,
        run_dir: str | Path | None,
        facts: Mapping[str, Any],
        notices: Notices,
        always: Sequence[str] = ALWAYS,
        rank: int = 0,
        ranks: RankGroup | None = None,
        sampling_plan: SamplingPlan | None = None,
    ) -> None:
        """`rank` names the files; `ranks` write one run together."""
        self._sparse = sampled_signals(sampling_plan or SamplingPlan())
        self._engine = Engine(settings)
        self._waiting: list[StepRecord] = []
        """Good steps that were not passed on yet."""
        self._block_steps = 1 if sampling_plan is FULL_SAMPLING else BLOCK_STEPS
        self._passed_on_at = 0.0
        self._ladders: defaultdict[str, Ladder] = defaultdict(Ladder)
        self.actions: deque[Action] = deque(maxlen=10_000)
        self.axes: dict[str, Sequence[str]] = {}
        self._policy = policy
        self._facts = facts
        self._signals = {name: Signal() for name in (*always, ENDING)}
        if policy.replay and policy.replays:
            self._signals[INCIDENT] = Signal()
        self.listeners: list[Callable[[Record], None]] = []
        """Called with every record, after the checks."""
        self.finding_listeners: list[Callable[[Finding], None]] = []
        """Called with every finding that this rank reports."""
        self._reported: dict[tuple[str, str, Severity], tuple[int | None, int]] = {}
        """Findings that were logged: the first step of each, and how often."""
        self.end_listeners: list[Callable[[str, int], None]] = []
        """Called with the status and the number of steps when the end was written."""
        self.ending = RunEnding()
        self.pid = os.getpid()
        """A forked child inherits the recorder and must not use it."""
        self._closed = False
        self._header_due = True
        self._lock = threading.RLock()
        """Held while a record is numbered and written: the watchdog records from its own thread."""
        self._seq = 0
        self._rank = rank
        # Ranks that decide together record the same steps: their number is that of rank 0.
        self._shown_rank = rank if ranks is None else 0
        self._size = 1 if ranks is None else ranks.size
        self.writer: RunDirWriter | None = None
        refused: UsageError | None = None
        if run_dir is not None:
            try:
                self.writer = RunDirWriter(
                    run_dir, rank=rank, notify=lambda text: notices.once("run-dir", text)
                )
            except UsageError as error:  # in use, or a store that cannot be opened
                refused = error
        self._training = 0
        self._segment = self.writer.segment if self.writer else 0
        if ranks is not None:  # the others must not wait for a rank that was refused
            self._segment = ranks.agree_on_start(self._segment, refused)
        elif refused is not None:
            raise refused
        self.heartbeat = (
            HeartbeatWriter()
            if self.writer is None or self.writer.broken or in_script.is_requested()
            else HeartbeatWriter.open(self.writer.path, rank=rank, segment=self._segment)
        )

    def write_for_parent(self, folder: Path) -> None:
        """Also write records and heartbeat to a folder for the parent process alone.

        It reports from them if this process vanishes. Nothing else uses the folder: a run without a
        run directory stays one.
        """
        trail = RunDirWriter(folder, notify=logger.debug)
        self.listeners.append(
            lambda record: trail.write(record, now=type(record) is not StepRecord)
        )
        self.end_listeners.append(lambda status, steps: trail.close())
        self.heartbeat = HeartbeatWriter.open(folder, rank=0, segment=self._segment)

    @property
    def engine(self) -> Engine:
        """The checks, which have seen every record so far."""
        self.pass_on_steps()
        return self._engine

    @property
    def segment(self) -> int:
        """The segment that is being written."""
        return self._segment

    def begin_segment(self, *, training: bool = False) -> None:
        """Start another segment of the run, after a resume or with a new optimizer.

        `training`: the script now trains another model with another optimizer.
        """
        self._segment += 1
        self._training += training
        self._header_due = True

    def declare(self, names: Sequence[str]) -> None:
        """Announce signals, so that the checks that need them can run."""
        for name in names:
            if name not in self._signals:
                self._signals[name] = self._sparse.get(name, Signal())
                self._header_due = True

    def extend_axis(self, axis: str, names: Sequence[str]) -> None:
        """Set the names along an axis; a longer list replaces a shorter one."""
        if tuple(self.axes.get(axis, ())) != tuple(names):
            self.axes[axis] = tuple(names)
            self._header_due = True

    def setup(self, step: int, topic: str, facts: Mapping[str, Any]) -> None:
        """Record facts about the setup."""
        with self._lock:
            number, rank = self._next(), self._shown_rank
            self._emit(SetupRecord(self._segment, number, topic, facts, step=step, rank=rank))

    def tensor(self, step: int, name: str, role: str, **about: Any) -> None:
        """Record the state of a tensor."""
        about["rank"] = self._rank
        with self._lock:
            record = TensorRecord(self._segment, self._next(), step, name, role, **about)
            self._emit(record, now=True)

    def event(self, step: int, kind: str, data: Mapping[str, Any]) -> None:
        """Record an event."""
        with self._lock:
            event = EventRecord(self._segment, self._next(), step, kind, data, rank=self._rank)
            self._emit(event, now=True)

    def from_thread(self, work: Callable[[], None]) -> None:
        """Record from another thread than the one that trains: `work` calls methods of this.

        Nothing is recorded where the training thread hangs within a write to the run directory.
        """
        if self._lock.acquire(timeout=LOCK_SECONDS):
            try:
                work()
            finally:
                self._lock.release()

    def step(
        self,
        step: int,
        values: Mapping[str, float],
        columns: Mapping[str, Column],
        *,
        held: bool,
    ) -> None:
        """Record the numbers of a step."""
        known = self._signals.keys()
        if not (values.keys() <= known and columns.keys() <= known):
            self.declare([*values, *columns])
        with self._lock:
            record = StepRecord(
                self._segment, self._next(), step, values, columns, held=held, rank=self._shown_rank
            )
            if held or self._header_due or not all(map(math.isfinite, values.values())):
                self._emit(record, now=held)
                return
            self._waiting.append(record)
            due = len(self._waiting) >= self._block_steps or bool(self.listeners)
            if due or time.monotonic() - self._passed_on_at > BLOCK_SECONDS:
                self.pass_on_steps()

    def pass_on_steps(self) -> None:
        """Write the steps that wait, and run the checks on them."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for record in waiting:
                self._pass_on(record, now=False)
            self._passed_on_at = time.monotonic()

    def ladder(self, optimizer: str = "") -> Ladder:
        """How far an optimizer has escalated. Each optimizer has its own ladder."""
        return self._ladders[optimizer]

    def judge(self, verdict: StepVerdict, rungs: frozenset[Rung], optimizer: str = "") -> Action:
        """Let the policy decide about a step, and record the action."""
        ladder = self.ladder(optimizer)
        action = self._policy.decide(ladder, verdict, rungs)
        ladder.record_action(action, self._policy.cooldown)
        if action.rung is not Rung.PROCEED:
            self.actions.append(action)
            self.event(verdict.step, "action", action.to_dict())
        return action

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        return {
            "ladders": {name: ladder.state_dict() for name, ladder in self._ladders.items()},
            "engine": self.engine.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, ladder in state["ladders"].items():
            self._ladders[name].load_state_dict(ladder)
        self.engine.load_state_dict(state["engine"])

    def interrupted(self, step: int, number: int, **facts: Any) -> None:
        """The user or the scheduler stops the run with a signal."""
        if self.ending.status == "finished":
            self.ending.status, self.ending.signal = "interrupted", number
            self.event(step, INTERRUPTED, {"signal": number, **facts})

    def close(self, step: int) -> list[Finding]:
        """The run is over: finish the checks, and write everything to disk."""
        if self._closed:
            return []
        self.end(step)
        late = self.engine.finish()
        self._report(late)
        return late

    @property
    def ended(self) -> bool:
        """Whether the end was written."""
        return self._closed

    def end(self, step: int) -> None:
        """Write how the run ended, once; the process may be about to exit."""
        if self._closed:
            return
        self._closed = True
        self.event(step, END, {"steps": step, **self.ending.to_dict()})
        if self.writer:
            self.writer.close()
        self.heartbeat.end(self.ending.status)
        for listener in self.end_listeners:
            listener(self.ending.status, step)

    def folder_with_snapshots(self, run_dir: str | Path | None) -> RunFolder | None:
        """The local folder of a run, by default this one; downloads snapshots that are missing."""
        if run_dir is not None and is_url(run_dir):
            return RunFolder(fetch_run(run_dir), StoredRun(run_dir))
        if run_dir is not None:
            return RunFolder(local_path(run_dir))
        own = self.folder
        if own is not None and self.writer is not None and self.writer.remote is not None:
            self.writer.remote.pull("snapshots")
        return own

    @property
    def folder(self) -> RunFolder | None:
        """The run directory on this host; None where it cannot be written."""
        writer = self.writer
        usable = writer is not None and not writer.broken
        return RunFolder(writer.path, writer.remote) if writer is not None and usable else None

    def flush(self) -> None:
        """Write everything to disk."""
        self.pass_on_steps()
        if self.writer:
            self.writer.flush()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _emit(self, record: Record, *, now: bool = False) -> None:
        self.pass_on_steps()
        if self._header_due:
            self._header_due = False
            self._pass_on(self._header(), now=False)
        self._pass_on(record, now=now)

    def _pass_on(self, record: Record, *, now: bool) -> None:
        if self.writer:
            self.writer.write(record, now=now)
        engine = self._engine
        engine.feed(record)
        if engine.opened:
            self._report(engine.opened)
        for listener in self.listeners:
            listener(record)

    def _header(self) -> Header:
        return Header(
            source="headway",
            signals=dict(self._signals),
            axes=dict(self.axes),
            facts=self._facts,
            world_size=self._size,
            segment=self._segment,
            seq=self._seq,
            rank=self._shown_rank,
            training=self._training,
        )

    def _report(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            # Rank 0 reports what all ranks know; another rank only what concerns itself.
            if self._rank != self._shown_rank and (
                finding.where.rank != self._rank or _is_known_to_all(finding.code)
            ):
                continue
            for listener in self.finding_listeners:
                listener(finding)
            if finding.severity >= Severity.WARNING:
                key = (finding.code, finding.subject, finding.severity)
                first, count = self._reported.get(key, (finding.step, 0))
                self._reported[key] = (first, count + 1)
                # The first in full, repeats as a count.
                again = f"occurred again ({ordinal(count + 1)} time, first at step {first})"
                logger.warning(
                    "headway: step %s: %s %s: %s",
                    finding.step,
                    finding.code,
                    finding.name,
                    again if count else finding.message,
                )


def _is_known_to_all(code: str) -> bool:
    """Whether a check judges the table of all ranks, which each of them has."""
    check = registry.find(code)
    return check is not None and any(name.startswith("rank/") for name in check.needs.signals)
