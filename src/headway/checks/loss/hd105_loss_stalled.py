from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median_low

from headway.checks.loss_context import has_competing_losses
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.numbers import say
from headway.core.records import Header, Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.signals import Signal
from headway.core.window import Window, detrended_sigma

CHANCE = {"binary_cross_entropy": math.log(2), "binary_cross_entropy_with_logits": math.log(2)}
"""The loss of a random guess, for functions whose name alone determines it."""

ABSURD = 1e100
"""A loss this large has moved."""

MAY_BEGIN = 100
"""In a log: a first row at this step may still be the beginning of the run."""
TIGHT = 0.005
"""In a log: losses whose spread is below this share of their level have not moved at all."""

KEPT = 300
"""First and last losses that are compared, at most: a long noisy log needs many."""


class LossStalled(Check):
    """The loss has not moved from its start although updates are applied.

    ## What it checks
    The level of the last losses against that of the first ones, once the learning rate has stopped
    rising.

    ## Why it matters
    The optimizer works but the model learns nothing: the labels do not belong to the inputs, the
    signal is lost between input and loss, or the steps are so large that they lead nowhere.

    ## How it is measured
    After at least 100 steps if the loss equals that of a random guess (ln C for C classes) and each
    sample has been seen before, so that the model could at least memorise them; otherwise after
    500. The last quarter (in a log: third) must be within 1 % of the first one and within its
    noise, and the noise must be small enough that 2 % of progress would be visible. If the size of
    the updates is known, they must have moved the weights by a twentieth of their norm in total.

    ## False alarms
    The loss must be flat from the start: a plateau after progress (label smoothing, a finished run)
    does not count. The count restarts whenever the learning rate rises (warm-up). Losses below 0 or
    often exactly 0 (policies, triplets) and several optimizers are not judged. A learning rate too
    low for any progress is HD404. A task that is learned late (parities, sparse rewards) looks the
    same until then, and so do data that cannot be learned.

    ## What to do
    Try to overfit one batch. If that fails, follow the other findings. If it works, check whether
    inputs and labels still belong together (shuffled separately, joined by a wrong key).

    ## References
    Karpathy, "A recipe for training neural networks": overfit one batch.
    """

    code = "HD105"
    name = "loss-stalled"
    severity = Severity.ERROR
    summary = "never moved from its start although updates are applied"
    needs = Needs(signals=("loss",), kinds=(StepRecord, SetupRecord), topics=("loss-call",))
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        guess_steps: int = 100
        """Steps without progress if the loss is that of a random guess."""
        steps: int = 500
        """Steps without progress in all other cases."""
        passes: float = 1.5
        """Passes over the samples that `guess_steps` requires."""
        progress: float = 0.01
        """Relative change of the level below which there is no progress."""
        path: float = 0.05
        """Distance the weights must have moved in total, relative to their norm."""

    def start(self) -> None:
        self.guesses: list[float] = []
        self.restart()
        self.begun: list[float] = []
        """The first losses of another tool's log."""
        self.over = False
        """Whether the loss moved, was reported, or cannot be judged."""

    def restart(self) -> None:
        """Restart the count: the learning rate rose, or the run was resumed."""
        self.onset: Moment | None = None
        self.first: list[float] = []
        self.recent = Window(KEPT)
        self.count = 0
        self.zeros = 0
        self.rate: float | None = None
        self.ratios = Window(100)
        self.passes = 0.0
        """Passes over the data so far, if known."""

    def begin(self, header: Header) -> None:
        if self.count and not self.over:
            self.restart()

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            self._learn(LossCallFacts.of(record))
            return
        loss = record.values.get("loss")
        if loss is None or record.held or self.over or not math.isfinite(loss):
            return
        if not 0 <= loss < ABSURD or record.values.get("optimizers", 1) > 1:
            self.over = True
            return
        if len(self.begun) < 3:
            self.begun.append(loss)
        self._observe_loss(record, loss)
        if self.count % 10 == 0 and not self.context.rows:  # a log is judged at its end
            yield from self._judge()

    def finish(self) -> Iterable[Finding]:
        if not self.over:
            yield from self._judge()

    def _learn(self, facts: LossCallFacts) -> None:
        function, classes = facts.function or "", facts.classes
        if facts.reduction != "mean" or len(self.guesses) >= 20:
            return
        if classes is not None and classes >= 2:
            self.guesses.append(math.log(classes))
        elif function in CHANCE:
            self.guesses.append(CHANCE[function])

    def _observe_loss(self, record: StepRecord, loss: float) -> None:
        rate = record.values.get("lr")
        if rate is not None and math.isfinite(rate):
            if self.rate is not None and rate > 1.5 * self.rate:
                self.restart()
            self.rate = max(rate, self.rate or 0.0)
        if self.onset is None:
            self.onset = moment_of(record)
        self.count += 1
        self.zeros += loss == 0
        if len(self.first) < KEPT:
            self.first.append(loss)
        self.recent.push(loss)
        passes = record.values.get("data_passes", 0.0)
        self.passes = passes if math.isfinite(passes) else self.passes
        column = record.columns.get("param/update_ratio")
        ratios = [] if column is None else [v for v in column.values if math.isfinite(v)]
        if ratios:
            self.ratios.push(median_low(ratios))

    def _judge(self) -> Iterable[Finding]:
        header = self.context.header
        signal = header.signals.get("loss", Signal())
        steps, rows = self.count * header.steps_per_value("loss"), self.context.rows
        if rows and self.onset is not None:
            # A log that begins late belongs to a resumed run, which may be near its end.
            late = self.onset[2] > max(MAY_BEGIN, 5 * signal.every) // signal.per_label
            if late or has_competing_losses(header):
                return
        if self.count < 20 or self.onset is None or not steps >= self.limits.guess_steps:
            return
        size = min(max(self.count // 3, 5), KEPT) if rows else min(max(self.count // 4, 5), 50)
        first, last = self.first[:size], self.recent.values[-size:]
        start, level = mean(first), mean(last)
        noise = math.hypot(_error(first, start), _error(last, level))
        if start <= 1e-4 or self.zeros > self.count / 10:
            self.over = True
            return
        moved = abs(level - start)
        if moved > max(5 * noise, 0.03 * start):
            self.over = True  # it can learn, so whatever follows is not a stall from the start
            return
        if rows and median_low(self.begun) > 1.02 * level + 3 * noise:
            return  # it learned in its first rows, while the rate still rose
        guess = any(0.85 * item <= level <= 1.15 * item for item in self.guesses)
        soon = guess and self.passes >= self.limits.passes
        if rows and steps >= 2 * self.limits.guess_steps:
            soon = soon or self.recent.sigma(log=False) <= TIGHT * start
        if steps < (self.limits.guess_steps if soon else self.limits.steps):
            return
        still = moved <= self.limits.progress * start and moved <= 3 * noise + 1e-12
        if not still or 3 * noise > 2 * self.limits.progress * start:
            return
        if len(self.ratios) and self.ratios.median * steps < self.limits.path:
            return
        self.over = True
        length = f"{steps} steps" if signal.per_label == 1 else f"{self.count} epochs"
        yield self.find(
            record_at(self.onset),
            f"the loss has not moved in {length}: {say(start)} at first, {say(level)} now"
            + (", the loss of a random guess" if guess else "")
            + (
                "; the learning rate is logged as 0 throughout"
                if self.rate == 0
                else "; updates are applied but make no progress"
            ),
            remedies=[NO_RATE if self.rate == 0 else OVERFIT_ONE],
            start=start,
            level=level,
            noise=noise,
            steps=steps,
            guess=guess,
        )


NO_RATE = (
    "Check the learning rate that the optimizer has: a schedule that starts or ends at 0, or is "
    "stepped before the optimizer exists, changes nothing."
)
OVERFIT_ONE = (
    "Try to overfit one batch. If it works, check whether inputs and labels still belong "
    "together; if not, check the code between the model's output and the loss."
)


def _error(values: Sequence[float], middle: float) -> float:
    """The standard error of the mean, which is `middle`."""
    if len(values) < 2:
        return math.inf
    spread = math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))
    return max(spread, detrended_sigma(values)) / math.sqrt(len(values))
