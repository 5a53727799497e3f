from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.optimizer_facts import ScheduleFacts
from headway.core.records import Header, Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.signals import Signal

NOTHING = 1e-6
"""Share of the highest rate below which a rate counts as 0."""


class ScheduleCollapsed(Check):
    """The learning rate reaches about 0 long before the run ends.

    ## What it checks
    The learning rate over the run; and, in a check, a schedule that is stepped once per batch:
    whether its configured length is long enough for that.

    ## Why it matters
    A schedule that is counted in epochs but stepped per batch finishes its decay in the first
    epoch. The rest of the run is computed, logged and paid for, but changes nothing.

    ## How it is measured
    In a log: the learning rate has been below a thousandth of its highest value for at least 20
    steps and a third of the run so far. In a check: from the settings of the schedule, the step at
    which that happens, against the steps of one pass over the loader, or of all epochs that the
    script names: less than half of them. A `ReduceLROnPlateau` with mode="min" that is given a
    metric named as one that should grow (accuracy, F1, …) while it grows, or the opposite. A
    rate of exactly 0 in all of the first 20 steps.

    ## False alarms
    Schedules that end at 0 spend the last few percent there. Restarts rise again. Warm-up is at the
    other end of the run. A learning rate that was never high is not judged.

    ## What to do
    Step the schedule once per epoch, or configure its length in steps: epochs * len(loader).

    ## References
    ivadomed/ivadomed#55; automl/Auto-PyTorch#210.
    """

    code = "HD405"
    name = "schedule-collapsed"
    summary = "the rate reaches ~0 long before the run ends"
    points_at = "schedule"
    needs = Needs(signals=("lr",), kinds=(StepRecord, SetupRecord))
    scope = "training"
    explains = (*NOTHING_MOVES, *POOR_FIT, "HD415", "HD705")

    @dataclass(frozen=True)
    class Limits:
        floor: float = 1e-3
        """Share of the highest rate below which nothing is learned."""
        steps: int = 20
        """Smallest number of steps below it."""
        share: float = 1 / 3
        """Smallest share of all steps so far."""
        early: float = 0.5
        """Share of the planned steps before which a schedule must not end."""

    def start(self) -> None:
        self.peaks: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.low: dict[str, int] = {}
        self.onset: dict[str, Moment] = {}
        self.reported: set[str] = set()
        self.spans: dict[str, tuple[int, int, float]] = {}
        """In the log of another tool: the first and the latest step, and the latest rate."""

    def begin(self, header: Header) -> None:
        self.low, self.onset = {}, {}

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            if record.topic == "schedule" and "foreseen" not in self.reported:
                yield from self._foresee(record)
            return
        for key, rate in record.family("lr"):
            if math.isfinite(rate) and rate >= 0:
                yield from self._observe_rate(record, key, rate)

    def _observe_rate(self, record: StepRecord, key: str, rate: float) -> Iterable[Finding]:
        span = self.context.header.steps_per_value(key)
        if self.context.rows:
            first = self.spans.get(key, (record.step, 0, 0.0))[0]
            self.spans[key] = (min(first, record.step), record.step, rate)
        peak = self.peaks[key] = max(self.peaks.get(key, 0.0), rate)
        self.counts[key] = self.counts.get(key, 0) + span
        if peak <= 0 or rate > self.limits.floor * peak:
            self.low.pop(key, None)
            return
        if key not in self.low:
            self.onset[key] = moment_of(record)
        self.low[key] = self.low.get(key, 0) + span
        if not self.context.rows:
            yield from self._judge(key, rate)

    def finish(self) -> Iterable[Finding]:
        if not self.context.rows:  # a log is judged at its end
            return
        for key, (first, last, rate) in self.spans.items():
            if key in self.low:
                # Not every row of a long log is read: use the step numbers for its length.
                signal = self.context.header.signals.get(key, Signal())
                low = last - self.onset[key][2] + signal.every
                self.low[key] = max(low * signal.per_label, 1)
                self.counts[key] = max((last - first + signal.every) * signal.per_label, 1)
                yield from self._judge(key, rate)

    def _judge(self, key: str, rate: float) -> Iterable[Finding]:
        peak, count, low = self.peaks[key], self.counts[key], self.low[key]
        share = self.limits.share
        if self.context.rows and rate <= NOTHING * peak:
            share /= 2  # schedules end at 0, but none should stay there for long
        enough = max(self.limits.steps, share * count)
        if low >= enough and key not in self.reported and "foreseen" not in self.reported:
            self.reported.add(key)
            yield self.find(
                record_at(self.onset[key]),
                f"the learning rate fell from {say(peak)} to {say(rate)} and has stayed there "
                f"for {low} of {count} steps: nothing is learned any more",
                subject=key,
                remedies=_REMEDIES,
                signal=key,
                peak=peak,
                value=rate,
                limit=self.limits.floor * peak,
                steps=low,
            )

    def _at_rest(self, record: SetupRecord, facts: ScheduleFacts, steps: int) -> Finding:
        by = f": {facts.schedule} does not raise it" if facts.schedule else ""
        return self.find(
            record,
            f"the learning rate is exactly 0 in all of the first {steps} steps{by}, so that no "
            f"weight changes",
            subject="rest",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Look for an integer division in the warm-up, and for a schedule of another "
                "optimizer than the one that steps.",
            ],
            steps=steps,
        )

    def _wrong_direction(self, record: SetupRecord, facts: ScheduleFacts) -> Finding:
        mode, other = facts.mode, "max" if facts.mode == "min" else "min"
        change = f"from {say(facts.metric_from or 0.0)} to {say(facts.metric_to or 0.0)}"
        return self.find(
            record,
            f"{facts.schedule} has mode='{mode}' and is given {facts.metric}, which improved "
            f"{change}: it counts every improvement as none and lowers the learning rate",
            subject="direction",
            where=facts.locate(rank=record.rank),
            remedies=[f"Create it with mode='{other}'."],
            metric=facts.metric,
            mode=mode,
        )

    def _foresee(self, record: SetupRecord) -> Iterable[Finding]:
        facts = ScheduleFacts.of(record)
        if facts.resting is not None:
            yield self._at_rest(record, facts, facts.resting)
            return
        if facts.metric is not None:
            yield self._wrong_direction(record, facts)
            return
        steps, optimizer_steps = facts.steps, facts.optimizer_steps
        after, length = facts.collapses_after, facts.pass_length
        if not steps or not optimizer_steps or not after or not length or length < 2:
            return
        if steps < 0.8 * optimizer_steps:
            return  # not stepped with every update
        per_batch = min(steps / max(facts.batches or steps, 1.0), 1.0)
        passes = max(facts.epochs or 1.0, 1.0)
        foreseen = passes * length * per_batch
        if foreseen <= steps or after >= self.limits.early * foreseen:
            return
        if facts.epochs is None and after >= length * per_batch:
            return
        self.reported.add("foreseen")
        kind = facts.schedule or "the schedule"
        name, horizon = facts.horizon_name, facts.horizon
        given = f" ({name}={say(horizon, 6)})" if name and horizon is not None else ""
        whole = f"of the {say(foreseen, 6)} steps of {say(passes, 6)} epochs"
        if facts.epochs is None:
            whole = f"of the {say(foreseen, 6)} steps of one epoch"
        yield self.find(
            record,
            f"{kind}{given} is stepped with every batch: its learning rate falls to a thousandth "
            f"or less after {say(after, 6)} {whole}",
            subject="foreseen",
            where=facts.locate(rank=record.rank),
            remedies=_REMEDIES,
            collapses_after=after,
            limit=self.limits.early * foreseen,
            foreseen_steps=foreseen,
            pass_length=length,
        )


_REMEDIES = [
    "Step the schedule once per epoch, after the loop over the batches.",
    "Or configure its length in steps: epochs * len(loader).",
]
