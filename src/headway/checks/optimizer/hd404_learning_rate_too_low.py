from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.update_trial import TrialCheck, TriedUpdate
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord

YOUNG = 5
"""Steps after which momentum has mostly built up."""


class LearningRateTooLow(TrialCheck):
    """The loss falls, but a step a thousand times larger would still lower it proportionally.

    ## What it checks
    How the loss of a step's own batch falls along its update, up to 1000 times the update.

    ## Why it matters
    A learning rate with three zeros too many trains nothing in the available time. The loss does
    fall, so the run looks as if it only needs patience.

    ## How it is measured
    The loss is computed at 1, 10, 100 and 1000 times the update. It must still fall almost
    proportionally at 1000 (5 times as far as at 100) in at least 3 trials and in all of them, and
    at this rate, including momentum, a fall by a tenth must take more than 10000 steps.

    ## False alarms
    Not judged: while the learning rate rises (warm-up), is below half of its peak or of the base
    rate of its schedule, if clipping reduces the gradient to a fifth, if the gradient itself is
    small (a converged run), and with several optimizers. If the learning rate has risen since, the
    count restarts.

    ## What to do
    Raise the learning rate by factors of 10 until a step ten times larger no longer helps.

    ## References
    Smith, "Cyclical learning rates" (the range test); TheDeepChecker.
    """

    code = "HD404"
    name = "learning-rate-too-low"
    summary = "the loss falls, but far more slowly than with a larger step"
    scope = "training"
    explains = ("HD105", "HD307")

    @dataclass(frozen=True)
    class Limits:
        straight: float = 5.0
        """Factor by which ten times the step must lower the loss further."""
        steps: float = 10_000.0
        """Steps that a fall of the loss by a tenth would take."""
        trials: int = 3
        """Trials that must agree."""
        gradient: float = 1e-3
        """Smallest gradient norm, as a share of the weight norm."""

    def start(self) -> None:
        super().start()
        self.crawls = 0
        self.cleared = False
        self.last: dict[str, float] = {}
        self.optimizer = ""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        tried = TriedUpdate.of(record)
        if tried is None or self.cleared or tried.flat:
            return ()
        lr, before = tried.facts.lr, tried.facts.lr_before
        if lr is not None and before is not None and lr > 1.001 * before:
            self.crawls, self.onset = 0, None
        elif not self._fit(tried):
            pass
        elif self._crawls(tried):
            self.crawls += 1
            self.mark_onset(record)
        else:
            self.cleared = True
        return ()

    def finish(self) -> Iterable[Finding]:
        if self.onset is not None and self.crawls >= self.limits.trials and not self.cleared:
            yield self._finding(self.onset)

    def _fit(self, tried: TriedUpdate) -> bool:
        """Whether the learning rate is at its intended value, and alone determines the step."""
        lr = tried.facts.lr
        if lr is None or lr <= 0 or not tried.alone or tried.facts.maximize:
            return False
        around = (
            (tried.facts.lr_peak or 0.0),
            (tried.facts.initial_lr or 0.0),
            (tried.facts.max_lr or 0.0),
        )
        gradient = tried.facts.gradient_norm or 0.0
        return (
            lr >= max(around) / 2
            and tried.faithful
            and tried.shrinks < 0.5
            and gradient >= self.limits.gradient * (tried.facts.weight_norm or 0.0)
            and (tried.facts.stepped_gradient_norm or 0.0) >= gradient / 5
        )

    def _crawls(self, tried: TriedUpdate) -> bool:
        farthest = max(tried.losses)
        far, near = tried.drop(farthest), tried.drop(round(farthest / 10, 6))
        if farthest < 1000 or far is None or near is None:
            return False
        if tried.slope is None or tried.slope >= 0:
            return False
        seen = near > 4 * tried.noise
        straight = far > 4 * tried.noise and (far >= self.limits.straight * near or not seen)
        young = tried.made < YOUNG
        boost = 1 / max(1 - (tried.facts.momentum or 0.0), 0.01) if young else 1.0
        steps = 0.1 * abs(tried.loss) / (-tried.slope * boost)
        self.last = {
            "loss": tried.loss,
            "slope": tried.slope,
            "far": far,
            "farthest": farthest,
            "steps": steps,
            "lr": (tried.facts.lr or 0.0),
        }
        self.optimizer = tried.facts.optimizer or ""
        self.point_at(tried.line(tried.facts.made_at))
        return straight and steps > self.limits.steps

    def _finding(self, onset: Moment) -> Finding:
        last = self.last
        return self.find_at_onset(
            onset,
            f"the learning rate of {say(last['lr'])} is far too low: an update lowers the loss "
            f"of {say(last['loss'], 4)} by {say(-last['slope'])}, one {say(last['farthest'], 7)} "
            f"times as large by {say(last['far'])}. At this rate, a fall of the loss by a tenth "
            f"takes about {say(last['steps'], 2)} steps",
            remedies=[
                f"Raise the learning rate by {say(last['farthest'], 7)} (to "
                f"{say(last['farthest'] * last['lr'], 2)}), then by further factors of 3 to 10 "
                f"until a larger step no longer helps."
            ],
            lr=last["lr"],
            drop=-last["slope"],
            multiple=last["farthest"],
            drop_at_multiple=last["far"],
            steps_for_a_tenth=last["steps"],
            trials=self.crawls,
            optimizer=self.optimizer,
        )
