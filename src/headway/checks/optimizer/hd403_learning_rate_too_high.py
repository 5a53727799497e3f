from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import BAD_STEPS, NONFINITE_OR_RANK
from headway.checks.update_trial import TRIAL, Course, TriedUpdate, setup_moment
from headway.core.check import Check, Needs
from headway.core.facts import Facts
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord, record_at

SURE, LONG = 8, 30
"""After so many steps it is known whether a run gains anything, and what its noise is like."""
BLOWN_UP = 20.0
"""A loss that was this many times its start has been blown up."""


class LearningRateTooHigh(Check):
    """Steps overshoot: a part of the update lowers the loss of its batch, the whole raises it.

    ## What it checks
    The loss of a step's own batch before and after its update, and at parts of it.

    ## Why it matters
    A step that jumps over the valley lands higher than it started. The loss grows, swings or rests
    at chance, units die, and numbers end in NaN: all of that is often taken for other faults.

    ## How it is measured
    A trial overshoots where the whole update leaves the loss at least 10 % higher while a part of
    it lowers it, and far where it doubles it. The run must have gained nothing: its loss is no
    number, or has doubled after 3 steps, or is not 5 % below its start after 8 (not half of it,
    where it had been 20 times as high). And it must have been the steps: half of the trials
    overshoot, or one does so far and the loss then went to 1.5 times its start, or, in 30 steps
    and more, a tenth of the trials overshoot and a twentieth of the losses went so high.

    ## False alarms
    A run that makes progress is left alone, whatever its steps do: near the edge of stability
    single steps overshoot all the time. Several optimizers (GANs), losses below 0 (rewards) and
    gradients that are not those of the loss are not judged.

    ## What to do
    Divide the learning rate by the factor named, warm it up, or clip the gradients.

    ## References
    Schneider et al., "Cockpit" (the step size alpha); TheDeepChecker.
    """

    code = "HD403"
    name = "learning-rate-too-high"
    severity = Severity.ERROR
    summary = "step sizes overshoot on this very loss"
    needs = Needs(kinds=(SetupRecord,), topics=(TRIAL,))
    explains = (
        *BAD_STEPS,
        *NONFINITE_OR_RANK,
        "HD304",
        "HD305",
        "HD317",
        "HD318",
        "HD105",
        "HD205",
        "HD414",
        "HD509",
        "HD512",
        "HD404",
    )

    @dataclass(frozen=True)
    class Limits:
        rise: float = 0.1
        """A whole update that raises the loss by this share overshoots …"""
        doubled: float = 2.0
        """… and by this factor it does so beyond doubt."""
        share: float = 0.5
        """Of the trials that show anything."""
        progress: float = 0.05
        """A loss this share below its start is progress."""

    def start(self) -> None:
        self.course = Course()
        self.trials = self.over = self.far = 0
        """Trials that show anything, those that overshoot, those that do so beyond doubt."""
        self.onset: Moment | None = None
        self.worst: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
        """Loss before, after, lowest on the way, and the part of the update it was at."""
        self.lr: float | None = None
        self.place: tuple[str | None, int | None, str | None] = (None, None, None)
        self.unfit = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        tried = TriedUpdate.of(record)
        if tried is None:
            self.course.take(Facts.of(record))
            return ()
        self.course.take(tried.facts)
        if not tried.alone or tried.facts.flag("maximize"):
            self.unfit = True
        if tried.flat or tried.slope is None:
            return ()
        self.trials += 1
        level = max(abs(tried.loss), abs(self.course.level) if self.course.known else 0.0)
        rise = tried.after - tried.loss
        lowers = tried.slope < 0 and tried.lowest_before < tried.loss - tried.noise
        if lowers and tried.shrinks < 0.7 and rise > max(self.limits.rise * level, 4 * tried.noise):
            self._overshoots(record, tried)
        return ()

    def finish(self) -> Iterable[Finding]:
        if (
            self.onset is not None
            and not self.unfit
            and self._by_steps()
            and self._gained_nothing()
        ):
            yield self._finding(self.onset)

    def _overshoots(self, record: SetupRecord, tried: TriedUpdate) -> None:
        self.over += 1
        self.far += tried.after > self.limits.doubled * abs(tried.loss)
        self.onset = self.onset or setup_moment(record)
        if self.over == 1:
            best = min(tried.losses, key=lambda at: tried.losses[at])
            self.worst = (tried.loss, tried.after, tried.losses[best], best)
            self.lr = tried.facts.number("lr")
            where = tried.line("made_at")
            self.place = (where.file, where.line, where.function)

    def _by_steps(self) -> bool:
        """Whether the steps are what keeps the run from learning."""
        course = self.course
        rose = course.high > 0 or course.bad > 0
        often = self.over >= 2 and self.over >= self.limits.share * self.trials
        now_and_then = (
            course.count >= LONG
            and self.over >= self.trials / 10
            and course.high >= course.count / 20
        )
        return often or (self.far > 0 and rose) or now_and_then

    def _gained_nothing(self) -> bool:
        course = self.course
        if not course.known:
            return course.bad > 0
        if course.bad and course.level >= course.start:
            return True
        if course.count < 3 or course.lowest < 0:
            return False
        if course.count < SURE:
            far = self.far > 0 and self.over >= 2
            return far and course.level > self.limits.doubled * course.start
        blown_up = course.highest > BLOWN_UP * course.start
        still = 0.5 if blown_up else 1 - self.limits.progress
        return course.level > still * course.start

    def _finding(self, onset: Moment) -> Finding:
        before, after, lowest, part = self.worst
        course = self.course
        rate = "" if self.lr is None else f" of {say(self.lr)}"
        factor = 1 / part if 0 < part < 1 else 10.0
        ends = "no number" if not course.last else say(course.level, 4)
        raised = "to no number" if math.isinf(after) else f"to {say(after, 4)}"
        return self.find(
            record_at(onset),
            f"the learning rate{rate} overshoots: the update raised the loss of its own batch from "
            f"{say(before, 4)} {raised}, while {say(part)} of it would have lowered it to "
            f"{say(lowest, 4)}; so in {self.over} of {self.trials} trials, and the run went from "
            f"{say(course.start, 4)} to {ends} in {course.count} steps",
            where=Where(file=self.place[0], line=self.place[1], function=self.place[2]),
            remedies=[
                f"Divide the learning rate by about {say(factor)}"
                + ("" if self.lr is None else f" (to {say(self.lr / factor, 2)})")
                + " and warm it up over the first steps."
            ],
            loss_before=before,
            loss_after=after,
            best_part=part,
            best_loss=lowest,
            overshoots=self.over,
            trials=self.trials,
            lr=self.lr,
        )
