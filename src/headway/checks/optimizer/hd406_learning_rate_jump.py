from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.optimizer_facts import ResumeFacts
from headway.core.records import Header, SetupRecord, StepRecord
from headway.core.window import DownsampledSeries


class LearningRateJump(Check):
    """The learning rate jumps up where the run was resumed.

    ## What it checks
    The first learning rate after a resume, against the last one before it or the one in the
    checkpoint.

    ## Why it matters
    A schedule that was not restored restarts: weights that had settled at a small learning rate get
    the large one of the start, and lose in a few steps what the end of the schedule had gained.

    ## How it is measured
    In a log: a new segment starts at twice the last rate or more, close to the highest rate, while
    the rate had been falling. If a log shows no resume, the rate must rise at once to three times
    its highest value so far, after a fall. In a check: the state of an optimizer was loaded, a
    schedule was created after that, and the rate of the first step is at least twice the loaded
    one; or above it at all, if the new schedule has the base rate of the checkpoint and is at
    its beginning. A hand-written schedule is recognised by its course: up at once, then down step
    by step.

    ## False alarms
    Restarts, cycles and warm-up within a run are not resumes. A rate that is set by hand after
    loading, new training stages with another optimizer, and rates that fall are not reported.

    ## What to do
    Save and load the schedule with the optimizer, `scheduler.load_state_dict(…)`, and create the
    schedule before the state of the optimizer is loaded.

    ## References
    ultralytics/yolov5#292.
    """

    code = "HD406"
    name = "learning-rate-jump"
    summary = "the learning rate jumps at a resume or restart"
    needs = Needs(signals=("lr",), kinds=(StepRecord, SetupRecord))
    scope = "training"
    explains = ("HD103", "HD104", "HD202", "HD207", "HD208", "HD308", "HD403")

    @dataclass(frozen=True)
    class Limits:
        factor: float = 2.0
        """Ratio of the first rate to the last one before."""
        same: float = 0.01
        """Relative difference of two rates that are the same."""
        near_peak: float = 0.5
        """Share of the highest rate so far that a restarted schedule reaches."""
        leap: float = 3.0
        """Multiple of the highest rate so far, if a log shows no resume."""
        watched: int = 10
        """Steps without a fall before the resume: a constant rate has no schedule."""

    def start(self) -> None:
        self.last = 0.0
        self.peak = 0.0
        self.fell = False
        self.resumed = False
        self.excused = False
        self.reported: set[int] = set()
        self.course = DownsampledSeries(512)
        """In the log of another tool: (step, rate) so far."""

    def begin(self, header: Header) -> None:
        self.resumed = self.peak > 0.0

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            if record.topic == "resume":
                yield from self._judge_resume(record)
            return
        rate = record.values.get("lr", math.nan)
        if not math.isfinite(rate) or rate < 0:
            return
        if rate == self.last and not self.resumed and not self.context.rows:
            return  # as at most steps
        resumed, self.resumed = self.resumed, False
        if resumed and not self.excused and not self._as_before(record, rate):
            yield from self._judge(record, self.last, rate)
        elif self._leaps(record, rate):
            self.reported.add(record.segment)
            yield self._finding(record, self.last, rate, None, leaps=True)
        self.excused = self.excused and not resumed
        self.fell = self.fell or rate < self.last
        self.last, self.peak = rate, max(self.peak, rate)
        if self.context.rows:
            self.course.push(record.step, rate)

    def _as_before(self, record: StepRecord, rate: float) -> bool:
        """Whether the rate equals that of the first time at this step: a log may contain a
        restarted training, or one that went back some steps."""
        past = [before for step, before in self.course.points if step <= record.step]
        if not self.course.points or record.step > max(step for step, _ in self.course.points):
            return False
        return not past or rate < self.limits.factor * past[-1]

    def _leaps(self, record: StepRecord, rate: float) -> bool:
        """Whether the rate of a log without a resume rises far above all before, after a fall: a
        warm restart returns to its peak and not beyond."""
        may_leap = self.context.rows and record.segment not in self.reported and self.fell
        return may_leap and self.last > 0 and rate >= self.limits.leap * self.peak

    def _judge(self, record: StepRecord, before: float, rate: float) -> Iterable[Finding]:
        limits = self.limits
        falling = self.fell and before < limits.near_peak * self.peak
        if not falling or before <= 0 or rate < limits.factor * before:
            return
        if rate >= limits.near_peak * self.peak and record.segment not in self.reported:
            self.reported.add(record.segment)
            yield self._finding(record, before, rate, None)

    def _judge_resume(self, record: SetupRecord) -> Iterable[Finding]:
        facts = ResumeFacts.of(record)
        # In a check a new segment is a new optimizer: only its facts show a resume.
        self.excused = True
        before, rate = facts.restored_rate, facts.rate
        if before is None or rate is None or before <= 0:
            return
        # The schedule of the checkpoint begins again: a fact, which needs no large jump.
        factor = 1 + self.limits.same if facts.restarted else self.limits.factor
        if rate < factor * before:
            return
        if facts.rate_by_schedule and record.segment not in self.reported:
            self.reported.add(record.segment)
            yield self._finding(record, before, rate, facts)

    def _finding(
        self,
        record: StepRecord | SetupRecord,
        before: float,
        rate: float,
        facts: ResumeFacts | None,
        *,
        leaps: bool = False,
    ) -> Finding:
        source = "loaded with the optimizer" if facts is not None else "used before"
        message = (
            f"after the resume the learning rate is {say(rate)}, {say(rate / before)} times the "
            f"{say(before)} that was {source}: the schedule restarted"
        )
        if leaps:
            message = (
                f"the learning rate jumps from {say(before)} to {say(rate)}, "
                f"{say(rate / self.peak)} times the highest before (limit {self.limits.leap:g}): "
                "probably a resume with other settings, because no schedule does that"
            )
        return self.find(
            record,
            message,
            where=None if facts is None else facts.locate(rank=record.rank),
            remedies=[
                "Save `scheduler.state_dict()` with the checkpoint and load it on resume.",
                "Create the schedule first, then load the states of the optimizer and the "
                "schedule.",
            ],
            value=rate,
            before=before,
            limit=self.limits.factor * before,
        )
