from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from headway.checks.loss_context import has_competing_losses
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.optimizer_facts import OptimizerFacts
from headway.core.records import Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.window import Window

EVERY = 25
"""Interval in steps at which the window is judged."""
LOSSES = 100
"""Number of first losses that are compared with as many recent ones."""
PLAIN = ("SGD", "ASGD")
"""Optimizers whose step is proportional to the gradient."""
HARD = 0.02
"""In another tool's log a milder factor is information only: little is known about such a run."""
FEWEST = 10
"""Smallest number of rows of another tool's log."""
LEARNED = 0.05
"""If the loss fell by this share, and below most of the first ones, the run learns."""


class ClippingSaturated(Check):
    """Most steps are clipped by a large factor: the clip, not the schedule, sets the step size.

    ## What it checks
    The factor by which the gradients are multiplied when clipped (`clip_coef`), over 200 steps.

    ## Why it matters
    Clipping is meant for rare steps. If it applies to every step, each update has the same length
    for every gradient: under SGD the learning rate is silently divided by the factor, and the
    schedule is no longer the one that was configured.

    ## How it is measured
    The median factor is below 0.05 and nine of ten steps are clipped to less than half, while the
    learning rate is not rising. If the loss is known, it decides: if it fell by 5 % or more, and
    below most of its first 100 values, the run learns anyway and the finding is information only.
    The run has 1000 steps for that before it is a warning. A run that ends after 30 to 100 steps is
    judged if nine of ten steps were clipped to a hundredth or less under plain SGD, and the loss
    did not fall.

    ## False alarms
    Clipping every step by a mild factor is common and harmless; so is strong clipping during
    warm-up. Under Adam a constant factor cancels out of the update: such a run learns and gets no
    warning.

    ## What to do
    Find out why the gradient is large: a loss that is summed instead of averaged, a component with
    a huge weight, unscaled targets, gradients clipped before `scaler.unscale_`. Under SGD a limit
    near the 90th percentile of the norm restores the schedule. Under Adam a higher limit changes
    nothing as long as every step is clipped; change the loss or the learning rate instead.

    ## References
    Google's "Deep Learning Tuning Playbook" (more than half of the steps clipped is too many);
    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks".
    """

    code = "HD208"
    name = "clipping-saturated"
    summary = "most steps are clipped by a large factor: the clip sets the step size"
    points_at = "clip"
    needs = Needs(signals=("clip_coef",), kinds=(StepRecord, SetupRecord), topics=("optimizer",))
    explains = ("HD105", "HD307", "HD404")

    @dataclass(frozen=True)
    class Limits:
        factor: float = 0.05
        """Median factor below which clipping is saturated."""
        mild: float = 0.5
        """Nine of ten steps must be clipped to less than this."""
        window: int = 200
        patience: int = 1000
        """Steps for which a run that does not learn must be clipped like this."""
        short: int = 30
        """Smallest number of steps of a short run that is judged (plain SGD only)."""
        short_factor: float = 0.01
        """Factor to which nine of ten steps of a short run must be clipped."""

    def start(self) -> None:
        self.windows: dict[str, Window] = {}
        self.since: dict[str, tuple[Moment, int]] = {}
        """Where strong clipping started for each optimizer, and after how many observed steps."""
        self.reported: set[str] = set()
        self.first_losses = Window(LOSSES)
        self.losses = Window(LOSSES)
        self.rate = math.nan
        self.rate_rises = False
        self.seen = 0
        self.plain: bool | None = None
        """Whether the steps of all optimizers are proportional to the gradient; None: unknown."""

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            self._add_optimizer(OptimizerFacts.of(record))
            return
        if record.held:
            return
        self.seen += 1
        self._learn(record)
        for name, factor in record.family("clip_coef"):
            window = self.windows.setdefault(name, Window(self.limits.window))
            if not window.push(factor):
                continue
            if factor < self.limits.mild:
                self.since.setdefault(name, (moment_of(record), self.seen))
            elif window.median >= self.limits.factor:
                self.since.pop(name, None)
            if self.seen % EVERY == 0 and window.full and not self.context.rows:
                yield from self._judge(name, window, self.limits.patience)

    def finish(self) -> Iterable[Finding]:
        for name, window in self.windows.items():
            if self.context.rows:
                yield from self._judge_log(name, window)
                continue
            yield from self._judge(name, window, self.limits.window // 2)
            yield from self._judge_short(name, window)

    def _add_optimizer(self, facts: OptimizerFacts) -> None:
        if facts.optimizer in PLAIN and self.plain is not False:
            self.plain = True
        else:
            self.plain = False

    def _judge_short(self, name: str, window: Window) -> Iterable[Finding]:
        """Under plain SGD the factor applies directly, so few steps show that nothing is learned.

        Other optimizers divide by the size of the gradient, and the factor cancels out.
        """
        limits: ClippingSaturated.Limits = self.limits
        enough = limits.short <= self.seen <= LOSSES and self.plain is True
        if not enough or name in self.reported or len(window) < limits.short:
            return
        if self.rate_rises or window.quantile(0.9) >= limits.short_factor:
            return
        losses = self.first_losses.values
        third = len(losses) // 3
        if third < limits.short // 3:
            return
        first, last = median(losses[:third]), median(losses[-third:])
        if last > first - LEARNED * abs(first) and name in self.since:
            self.reported.add(name)
            yield self._finding(name, window, learns=False)

    def _judge_log(self, name: str, window: Window) -> Iterable[Finding]:
        """Judge a log, which may have few rows that cover many steps each."""
        limits: ClippingSaturated.Limits = self.limits
        steps = self.context.header.steps_per_value(name)
        enough = len(window) >= FEWEST and self.seen * steps >= limits.window
        saturated = window.median < limits.factor and window.quantile(0.9) < limits.mild
        if not enough or not saturated or name in self.reported or name not in self.since:
            return
        losses = [*self.first_losses.values, *self.losses.values]
        third = max(len(losses) // 3, 1)
        if len(losses) < FEWEST or has_competing_losses(self.context.header):
            return  # it is unknown whether the run learns
        last = median(losses[-third:])
        fell = (
            (first - last) / max(abs(first), 1e-12)
            for first in (median(losses[:third]), median(losses[:3]) * (1 - LEARNED))
        )
        learns = max(fell) > LEARNED / 3 or window.median > HARD
        yield self._finding(name, window, learns)

    def _learn(self, record: StepRecord) -> None:
        loss = record.values.get("loss", math.nan)
        if not self.first_losses.full:
            self.first_losses.push(loss)
        else:
            self.losses.push(loss)
        if self.seen % EVERY == 0:
            rate = record.values.get("lr", math.nan)
            self.rate_rises = rate > self.rate * 1.01
            self.rate = rate

    def _judge(self, name: str, window: Window, patience: int) -> Iterable[Finding]:
        if window.median > 2 * self.limits.factor:
            self.reported.discard(name)
        saturated = window.median < self.limits.factor and window.quantile(0.9) < self.limits.mild
        if not saturated or self.rate_rises or name in self.reported:
            return
        # NaN if no loss is known: then there is no evidence that the run learns.
        first, later = self.first_losses, self.losses.median
        learns = later < min(first.quantile(0.3), first.median - LEARNED * abs(first.median))
        if learns or self.seen - self.since[name][1] >= patience:
            self.reported.add(name)
            yield self._finding(name, window, learns)

    def _finding(self, name: str, window: Window, learns: bool) -> Finding:
        mild = self.context.rows and window.median > HARD
        then = "; the loss still falls" if learns and not mild else ""
        return self.find(
            record_at(self.since[name][0]),
            f"{name}: clipping scales the gradients of {len(window)} steps by a median factor of "
            f"{say(window.median)} (limit {say(self.limits.factor)}; 90th percentile "
            f"{say(window.quantile(0.9))}), so it sets the step size, not the schedule{then}",
            subject=name,
            severity=Severity.INFO if learns else None,
            remedies=[
                "Find out why the gradient is large: a summed loss, a component with a huge "
                "weight, unscaled targets, clipping before scaler.unscale_.",
                "Under SGD, set the limit near the 90th percentile of the gradient norm. Under "
                "Adam the limit has no effect: a constant factor cancels out of the update.",
            ],
            median=window.median,
            nine_of_ten=window.quantile(0.9),
            limit=self.limits.factor,
            steps=len(window),
            loss_falls=learns,
        )
