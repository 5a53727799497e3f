from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.checks.update_trial import TRIAL, Course, TriedUpdate, setup_moment
from headway.core.check import Check, Needs
from headway.core.facts import Facts
from headway.core.findings import Finding, Where
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord, record_at


class OverRegularised(Check):
    """Weight decay or a penalty shrinks the weights faster than the loss can move them.

    ## What it checks
    The direction of the update against the weights themselves, and what becomes of their norm.

    ## Why it matters
    Decay that outweighs the gradient pulls every weight to 0, and the model with them: it predicts
    the mean whatever it is given, and the loss rests where it started.

    ## How it is measured
    From the weight matrices at tried updates: the share of the update that points at 0 (the cosine
    between the update and the negative weights) is at least 0.7, and it takes at least 0.05 % of
    the weight each step. That must be so in half of the trials made before the norm has fallen to
    half, 3 at least; the norm must have fallen by 30 % (or at least 1 % at every step of a short
    run), and the loss without the penalty must not have fallen by 10 %, nor by more than batches
    differ.

    ## False alarms
    A run that learns is left alone, however its norms fall. Once a run has converged only decay is
    left of the update, but then it is slow: a decay of 0.1 at a rate of 0.001 takes 0.01 % a step.

    ## What to do
    Lower the weight decay or the weight of the penalty by factors of 10. With SGD and Adam
    (coupled) usual values are 1e-5 to 1e-3, with AdamW 0.01 to 0.1.

    ## References
    TheDeepChecker (a regulariser that dominates the gradient).
    """

    code = "HD412"
    name = "over-regularised"
    summary = "decay or a penalty shrinks the weights faster than the loss moves them"
    needs = Needs(kinds=(SetupRecord,), topics=(TRIAL,))
    explains = (*POOR_FIT, "HD105", "HD203", "HD205", "HD307", "HD308", "HD404")

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.7
        """Cosine between the update and the way to 0."""
        pace: float = 5e-4
        """Share of the weight that a step takes away."""
        fast: float = 0.01
        """The same, where a run is too short to see the norm fall."""
        fallen: float = 0.7
        """The norm must have fallen to this."""
        progress: float = 0.1
        """A loss this share below its start is progress."""

    def start(self) -> None:
        self.course, self.task = Course(), Course()
        self.trials = self.shrinking = self.fast = 0
        self.first_norm: float | None = None
        self.last_norm = 0.0
        self.lowest_norm = float("inf")
        self.onset: Moment | None = None
        self.told: dict[str, float] = {}
        self.place: tuple[str | None, int | None, str | None] = (None, None, None)
        self.unfit = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = Facts.of(record)
        self.course.take(facts)
        self.task.take(facts, "tasks")
        tried = TriedUpdate.of(record)
        norm = None if tried is None else tried.facts.number("matrix_norm")
        if tried is None or norm is None:
            return ()
        self.unfit = self.unfit or not tried.alone
        self.first_norm = norm if self.first_norm is None else self.first_norm
        self.lowest_norm = min(self.lowest_norm, norm)
        self.last_norm = norm
        if norm < self.first_norm / 2:
            return ()  # what is left of the weights tells nothing of what took them
        self.trials += 1
        pace = tried.number("shrinking")
        if tried.shrinks >= self.limits.share and pace >= self.limits.pace:
            self.shrinking += 1
            self.fast += pace >= self.limits.fast
            self.onset = self.onset or setup_moment(record)
            where = tried.line("made_at" if tried.number("weight_decay") else "place")
            self.place = (where.file, where.line, where.function)
            self.told = {
                "share": tried.shrinks,
                "pace": pace,
                "weight_decay": tried.number("weight_decay"),
                "lr": tried.number("lr"),
            }
        return ()

    def finish(self) -> Iterable[Finding]:
        if self.onset is None or self.unfit or self.first_norm is None:
            return
        often = self.shrinking >= 3 and self.shrinking >= self.trials / 2
        fallen = self.lowest_norm <= self.limits.fallen * self.first_norm
        fast = self.fast >= 3 and self.fast == self.trials
        if often and (fallen or fast) and not self._learns():
            yield self._finding(self.onset, self.first_norm)

    def _learns(self) -> bool:
        return (self.task if self.task.known else self.course).learned(self.limits.progress)

    def _finding(self, onset: Moment, first: float) -> Finding:
        told = self.told
        decay = told.get("weight_decay", 0.0)
        by = f"weight decay of {say(decay)}" if decay else "a penalty on the weights"
        return self.find(
            record_at(onset),
            f"the weights are shrunk, not trained: {say(100 * told['share'])} % of the update "
            f"points at 0 and takes {say(100 * told['pace'])} % of the weights each step ({by}); "
            f"their norm went from {say(first)} to {say(self.last_norm)} while the loss stayed",
            where=Where(file=self.place[0], line=self.place[1], function=self.place[2]),
            remedies=[
                f"Lower the weight decay of {say(decay)} by factors of 10."
                if decay
                else "Lower the weight of the penalty by factors of 10, until the loss falls."
            ],
            share=told["share"],
            pace=told["pace"],
            weight_decay=decay,
            lr=told.get("lr"),
            norm_before=first,
            norm_after=self.last_norm,
            trials=self.trials,
        )
