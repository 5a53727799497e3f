"""Turns numbers into records, findings and actions; writes the run directory and feeds trackers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.config import Settings
from headway.core.findings import Finding, Severity
from headway.core.incident_events import INCIDENT
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
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.ranks.rank_table import COLUMNS
from headway.output.notices import Notices, logger
from headway.output.trackers.tracker_group import TrackerGroup, open_trackers
from headway.policy import Action, Ladder, Policy, Rung, StepVerdict
from headway.rerun import in_script
from headway.rundir.writer import RunDirWriter

if TYPE_CHECKING:
    from headway.torch_adapters.rank_group import RankGroup


# From numbers to records, findings, actions and the run directory.

# Torch-free bookkeeping: gives every record its place in the stream, writes it down, lets the
# checks look at it, asks the policy what to do, and tells the user what is new. What a post-mortem
# reads from the run directory is, record by record, what the live engine was fed.

_SAMPLED = (
    "host_rss_bytes",
    "device_allocated_bytes",
    "param/grad_norm",
    "param/clip_coef",
    "param/weight_norm",
    "param/update_ratio",
    "buffer/norm",
    *COLUMNS,
)


def _sampled_signals(sampling_plan: SamplingPlan) -> dict[str, Signal]:
    """What does not stand in every step."""
    return {
        **{name: Signal(every=sampling_plan.every) for name in _SAMPLED},
        "graphs_kept": Signal(every=sampling_plan.graphs_every),
        "param/grad_zero_share": Signal(every=sampling_plan.zeros_every),
        "rank/weights_hash": Signal(every=sampling_plan.weights_every),
    }


ALWAYS = ("grad_norm", "lr", "grads_carried", "grad_nonfinite_tensors", "step_time_s")
"""Measured at every step, whether or not a value shows up in it: absent then means zero."""
WITH_SCALER = ("loss_scale", "scaler_skipped")


class Recorder:
    """The stream of one guard."""

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
        """`rank` names the files; `ranks` are those that write one run together."""
        self._sparse = _sampled_signals(sampling_plan or SamplingPlan())
        self.engine = Engine(settings)
        self._ladders: defaultdict[str, Ladder] = defaultdict(Ladder)
        self.actions: deque[Action] = deque(maxlen=10_000)
        self.axes: dict[str, Sequence[str]] = {}
        self._policy = policy
        self._facts = facts
        self._signals = {name: Signal() for name in always}
        if policy.replay and policy.replays:
            self._signals[INCIDENT] = Signal()
        self.listeners: list[Callable[[Record], None]] = []
        """Told of every record, after the checks have seen it."""
        self.finding_listeners: list[Callable[[Finding], None]] = []
        """Told of every finding that is this rank's to tell."""
        self._header_due = True
        self._seq = 0
        self._rank = rank
        # Of ranks that decide together, each writes down the same steps: none is its own.
        self._voice = rank if ranks is None else 0
        self._size = 1 if ranks is None else ranks.size
        self.writer = (
            RunDirWriter(run_dir, rank=rank, notify=lambda text: notices.once("run-dir", text))
            if run_dir is not None
            else None
        )
        self._segment = self.writer.segment if self.writer else 0
        if ranks is not None:
            self._segment = ranks.agree_on_start(self._segment)

    def begin_segment(self) -> None:
        """What follows is another stretch of the run: a resume, a new optimizer."""
        self._segment += 1
        self._header_due = True

    def declare(self, names: Sequence[str]) -> None:
        """Say that signals of these names may come, so that checks know they can run."""
        for name in names:
            if name not in self._signals:
                self._signals[name] = self._sparse.get(name, Signal())
                self._header_due = True

    def extend_axis(self, axis: str, names: Sequence[str]) -> None:
        """Give the names along an axis; a longer list later replaces a shorter one."""
        if tuple(self.axes.get(axis, ())) != tuple(names):
            self.axes[axis] = tuple(names)
            self._header_due = True

    def setup(self, step: int, topic: str, facts: Mapping[str, Any]) -> None:
        """Record facts about the set-up."""
        self._emit(
            SetupRecord(self._segment, self._next(), topic, facts, step=step, rank=self._voice)
        )

    def tensor(self, step: int, name: str, role: str, **about: Any) -> None:
        """Record the state of a tensor."""
        about["rank"] = self._rank
        self._emit(TensorRecord(self._segment, self._next(), step, name, role, **about), now=True)

    def event(self, step: int, kind: str, data: Mapping[str, Any]) -> None:
        """Record that something happened."""
        event = EventRecord(self._segment, self._next(), step, kind, data, rank=self._rank)
        self._emit(event, now=True)

    def step(
        self,
        step: int,
        values: Mapping[str, float],
        columns: Mapping[str, Column],
        *,
        held: bool,
    ) -> None:
        """Record the numbers of a step."""
        self.declare([name for name in (*values, *columns) if name not in self._signals])
        record = StepRecord(
            self._segment, self._next(), step, values, columns, held=held, rank=self._voice
        )
        self._emit(record, now=held)

    def ladder(self, optimizer: str = "") -> Ladder:
        """How far an optimizer has climbed. Each has its own: one may be well and the other not."""
        return self._ladders[optimizer]

    def judge(self, verdict: StepVerdict, rungs: frozenset[Rung], optimizer: str = "") -> Action:
        """Let the policy decide about a step and write the action down."""
        ladder = self.ladder(optimizer)
        action = self._policy.decide(ladder, verdict, rungs)
        ladder.climb(action, self._policy.cooldown)
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

    def close(self, step: int) -> list[Finding]:
        """The run is over: let the checks say their last word and put everything on disk."""
        self.event(step, "end", {"steps": step})
        late = self.engine.finish()
        self._tell(late)
        self.flush()
        return late

    def flush(self) -> None:
        """Put everything on disk."""
        if self.writer:
            self.writer.flush()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _emit(self, record: Record, *, now: bool = False) -> None:
        if self._header_due:
            self._header_due = False
            self._pass_on(self._header(), now=False)
        self._pass_on(record, now=now)

    def _pass_on(self, record: Record, *, now: bool) -> None:
        if self.writer:
            self.writer.write(record, now=now)
        self.engine.feed(record)
        if self.engine.opened:
            self._tell(self.engine.opened)
        for told in self.listeners:
            told(record)

    def _header(self) -> Header:
        return Header(
            source="headway",
            signals=dict(self._signals),
            axes=dict(self.axes),
            facts=self._facts,
            world_size=self._size,
            segment=self._segment,
            seq=self._seq,
            rank=self._voice,
        )

    def _tell(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            # What all ranks found together, the first says; what is a rank's own, that rank.
            if self._rank != self._voice and finding.where.rank is None:
                continue
            for told in self.finding_listeners:
                told(finding)
            if finding.severity >= Severity.WARNING:
                logger.warning(
                    "headway: step %s: %s %s: %s",
                    finding.step,
                    finding.code,
                    finding.name,
                    finding.message,
                )


# The trackers that a guard shows its run to.


def attach_trackers(
    given: Sequence[Any], recorder: Recorder, ranks: RankGroup | None, notices: Notices
) -> TrackerGroup:
    """Show a recorder's stream to these trackers.

    Of ranks that write one run together, the first shows it. A rehearsal is no run.
    """
    writer = recorder.writer
    folder = None if writer is None or writer.broken else writer.path
    if (ranks is not None and ranks.rank != 0) or in_script.is_requested():
        given = ()
    trackers = open_trackers(given, run_dir=folder, notify=notices.once)
    recorder.listeners += [queue.record for queue in trackers.queues]
    recorder.finding_listeners += [queue.finding for queue in trackers.queues]
    return trackers
