from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import BAD_STEPS, NONFINITE_OR_RANK
from headway.checks.update_trial import LossSummary, TrialCheck, TriedUpdate
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.optimizer_facts import TrialFacts
from headway.core.records import Moment, SetupRecord

SURE, LONG = 8, 30
"""Steps after which it is known whether a run makes progress, and how noisy it is."""
BLOWN_UP = 20.0
"""Multiple of its start at which a loss has blown up."""


class LearningRateTooHigh(TrialCheck):
    """Steps overshoot: a part of the update lowers the loss of its batch, the whole raises it.

    ## What it checks
    The loss of a step's own batch before and after its update, and at parts of it.

    ## Why it matters
    A step that jumps over the minimum ends higher than it started. The loss grows, oscillates or
    stays at chance level, units die, and values become NaN: these symptoms are often mistaken for
    other faults.

    ## How it is measured
    A trial overshoots if the whole update leaves the loss at least 10 % higher while a part of it
    lowers it, and it overshoots far if the loss doubles. The run must have made no progress: its
    loss is non-finite, or has doubled after 3 steps, or is not 5 % below its start after 8 (not
    half of it, if it had been 20 times as high). And the steps must be the cause: half of the
    trials overshoot, or one overshoots far and the loss then reached 1.5 times its start, or, in 30
    steps and more, a tenth of the trials overshoot and a twentieth of the losses were that high.

    ## False alarms
    A run that makes progress is not reported, whatever its steps do: near the edge of stability
    single steps overshoot all the time. Several optimizers (GANs), losses below 0 (rewards) and
    gradients that are not those of the loss are not judged.

    ## What to do
    Divide the learning rate by the reported factor, use a warm-up, or clip the gradients.

    ## References
    Schneider et al., "Cockpit" (the step size alpha); TheDeepChecker.
    """

    code = "HD403"
    name = "learning-rate-too-high"
    severity = Severity.ERROR
    summary = "update steps overshoot on the loss of their own batch"
    points_at = "optimizer"
    scope = "training"
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
        """Share by which a whole update that overshoots raises the loss."""
        doubled: float = 2.0
        """Factor on the loss from which an update overshoots far."""
        share: float = 0.5
        """Share of the informative trials that must overshoot."""
        progress: float = 0.05
        """Share by which the loss must fall below its start to count as progress."""

    def start(self) -> None:
        super().start()
        self.course = LossSummary()
        self.trials = self.over = self.far = 0
        """Informative trials, those that overshoot, and those that overshoot far."""
        self.worst: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
        """Loss before, after, lowest in between, and the part of the update where it is lowest."""
        self.lr: float | None = None
        self.unfit = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts, tried = TrialFacts.of(record), TriedUpdate.of(record)
        self.course.take(facts, facts.since)
        if tried is None:
            return ()
        if not tried.alone or tried.facts.maximize:
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
            and self._made_no_progress()
        ):
            yield self._finding(self.onset)

    def _overshoots(self, record: SetupRecord, tried: TriedUpdate) -> None:
        self.over += 1
        self.far += tried.after > self.limits.doubled * abs(tried.loss)
        self.mark_onset(record)
        if self.over == 1:
            best = min(tried.losses, key=lambda at: tried.losses[at])
            self.worst = (tried.loss, tried.after, tried.losses[best], best)
            self.lr = tried.facts.lr
            self.point_at(tried.line(tried.facts.made_at))

    def _by_steps(self) -> bool:
        """Whether the steps are what prevents the run from learning."""
        course = self.course
        rose = course.high > 0 or course.bad > 0
        often = self.over >= 2 and self.over >= self.limits.share * self.trials
        now_and_then = (
            course.count >= LONG
            and self.over >= self.trials / 10
            and course.high >= course.count / 20
        )
        return often or (self.far > 0 and rose) or now_and_then

    def _made_no_progress(self) -> bool:
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
        ends = "a non-finite value" if not course.last else say(course.level, 4)
        raised = "to a non-finite value" if math.isinf(after) else f"to {say(after, 4)}"
        return self.find_at_onset(
            onset,
            f"the learning rate{rate} overshoots in {self.over} of {self.trials} trials: an "
            f"update raised the loss of its own batch from {say(before, 4)} {raised}, while "
            f"{say(part)} of it would have lowered it to {say(lowest, 4)}. The loss went from "
            f"{say(course.start, 4)} to {ends} in {course.count} steps",
            remedies=[
                f"Divide the learning rate by about {say(factor)}"
                + ("" if self.lr is None else f" (to {say(self.lr / factor, 2)})")
                + " and use a warm-up over the first steps."
            ],
            loss_before=before,
            loss_after=after,
            best_part=part,
            best_loss=lowest,
            overshoots=self.over,
            trials=self.trials,
            lr=self.lr,
        )
