from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.checks.update_trial import LossSummary, TrialCheck, TriedUpdate
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.optimizer_facts import TrialFacts
from headway.core.records import Moment, SetupRecord


class OverRegularised(TrialCheck):
    """Weight decay or a penalty shrinks the weights faster than the loss can train them.

    ## What it checks
    The direction of the update against the weights themselves, and the change of their norm.

    ## Why it matters
    Decay that outweighs the gradient pulls every weight to 0: the model predicts the mean for
    every input, and the loss stays at its start.

    ## How it is measured
    From the weight matrices in trial updates: the share of the update that points towards 0 (the
    cosine between the update and the negative weights) is at least 0.7, and it removes at least
    0.05 % of the weight per step. That must be so in half of the trials before the norm has fallen
    to half, in at least 3; the norm must have fallen by 30 % (or by at least 1 % in every step of a
    short run), and the loss without the penalty must not have fallen by 10 %, nor by more than
    batches differ.

    ## False alarms
    A run that learns is not reported even if its norms fall. Once a run has converged the update
    consists only of decay, but then it is slow: a decay of 0.1 at a learning rate of 0.001 removes
    0.01 % per step.

    ## What to do
    Lower the weight decay or the weight of the penalty by factors of 10. With SGD and Adam
    (coupled) usual values are 1e-5 to 1e-3, with AdamW 0.01 to 0.1.

    ## References
    TheDeepChecker (a regulariser that dominates the gradient).
    """

    code = "HD412"
    name = "over-regularised"
    summary = "decay or a penalty shrinks the weights faster than the loss trains them"
    explains = (*POOR_FIT, "HD105", "HD203", "HD205", "HD307", "HD308", "HD404")

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.7
        """Cosine between the update and the direction to 0."""
        pace: float = 5e-4
        """Share of the weight that a step removes."""
        fast: float = 0.01
        """The same, if a run is too short to see the norm fall."""
        fallen: float = 0.7
        """Share of its start to which the norm must have fallen."""
        progress: float = 0.1
        """Share by which the loss must fall below its start to count as progress."""

    def start(self) -> None:
        super().start()
        self.course, self.task = LossSummary(), LossSummary()
        self.trials = self.shrinking = self.fast = 0
        self.first_norm: float | None = None
        self.last_norm = 0.0
        self.lowest_norm = float("inf")
        self.shown: dict[str, float] = {}
        self.unfit = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TrialFacts.of(record)
        self.course.take(facts, facts.since)
        self.task.take(facts, facts.tasks)
        tried = TriedUpdate.of(record)
        norm = None if tried is None else tried.facts.matrix_norm
        if tried is None or norm is None:
            return ()
        self.unfit = self.unfit or not tried.alone
        self.first_norm = norm if self.first_norm is None else self.first_norm
        self.lowest_norm = min(self.lowest_norm, norm)
        self.last_norm = norm
        if norm < self.first_norm / 2:
            return ()  # the remaining weights do not show what shrank them
        self.trials += 1
        pace = tried.facts.shrinking or 0.0
        if tried.shrinks >= self.limits.share and pace >= self.limits.pace:
            self.shrinking += 1
            self.fast += pace >= self.limits.fast
            self.mark_onset(record)
            self.point_at(
                tried.line(tried.facts.made_at if tried.facts.weight_decay else tried.facts.place)
            )
            self.shown = {
                "share": tried.shrinks,
                "pace": pace,
                "weight_decay": (tried.facts.weight_decay or 0.0),
                "lr": (tried.facts.lr or 0.0),
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
        shown = self.shown
        decay = shown.get("weight_decay", 0.0)
        by = f"weight decay of {say(decay)}" if decay else "a penalty on the weights"
        return self.find_at_onset(
            onset,
            f"the weights shrink instead of being trained: {say(100 * shown['share'])} % of the "
            f"update points towards 0 and removes {say(100 * shown['pace'])} % of the weights "
            f"per step ({by}). Their norm went from {say(first)} to {say(self.last_norm)} while "
            f"the loss did not fall",
            remedies=[
                f"Lower the weight decay of {say(decay)} by factors of 10."
                if decay
                else "Lower the weight of the penalty by factors of 10, until the loss falls."
            ],
            share=shown["share"],
            pace=shown["pace"],
            weight_decay=decay,
            lr=shown.get("lr"),
            norm_before=first,
            norm_after=self.last_norm,
            trials=self.trials,
        )
