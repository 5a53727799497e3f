from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from headway.checks.loss_context import loss_call_site
from headway.checks.symptoms import BAD_STEPS, NONFINITE_OR_RANK
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.loss_facts import SteppingOptimizer, SummedLossFacts
from headway.core.numbers import say
from headway.core.records import Header, Moment, SetupRecord, StepRecord, record_at


class SumReducedLoss(Check):
    """The loss is a sum over the batch: loss and gradients grow with the batch size.

    ## What it checks
    Every sum over samples in the loss: the factor by which each sample contributes to the tensor
    that `backward` is called on, about 1 (a sum) or 1/N (a mean).

    ## Why it matters
    With SGD the size of a step is the learning rate times the gradient. A sum over 64 samples takes
    steps 64 times as large as the mean at the same learning rate: the run overshoots, and every
    change of the batch size changes the effective learning rate.

    ## How it is measured
    The derivative of the loss with respect to the sum, in the first steps: above 0.5, over as many
    rows as the batch has. It is a warning if the steps are too large: a learning rate times N of 1
    or more, updates of a tenth of the weights, or a loss that rises by half or becomes non-finite.
    It is also a warning if another term of the same loss, over the same rows, is a mean without a
    weight of its own: the balance of the two then depends on the batch size, with any optimizer.

    ## False alarms
    Adam and similar optimizers normalise the gradient themselves: a VAE's summed reconstruction is
    information only. So are SGD with a learning rate chosen for the sum, and clipped gradients. A
    sum that is divided by the batch size or by the number of tokens is a mean.

    ## What to do
    Use `reduction="mean"`, or divide the loss or the learning rate by the number of samples
    (tokens).

    ## References
    Stack Overflow 43611745; Goyal et al., "Accurate, large minibatch SGD".
    """

    code = "HD116"
    name = "sum-reduced-loss"
    severity = Severity.WARNING
    summary = "loss and gradient grow with the batch size"
    needs = Needs(kinds=(SetupRecord, StepRecord), topics=("summed-loss",))
    explains = (
        *BAD_STEPS,
        *NONFINITE_OR_RANK,
        "HD403",
        "HD304",
        "HD305",
        "HD512",
        "HD105",
        "HD404",
        "HD509",
    )

    @dataclass(frozen=True)
    class Limits:
        rate: float = 1.0
        """Learning rate times rows from which SGD steps are too large."""
        update: float = 0.1
        """Relative change of the weights in one step from which steps are too large."""
        rise: float = 1.5
        """Ratio of a later loss to the first from which steps are too large."""
        steps: int = 20
        """Number of steps that are inspected for it."""

    def start(self) -> None:
        self.found: dict[str, tuple[Moment, dict[str, object]]] = {}
        """Call site → where it was first observed, and the facts for the message."""
        self.reported: set[str] = set()
        self.steps = 0
        self.first: float | None = None
        self.last = math.nan
        self.clipped = False
        self.harm = ""

    def begin(self, header: Header) -> None:
        self.found = {}

    def observe(self, record: SetupRecord | StepRecord) -> Iterable[Finding]:
        if isinstance(record, StepRecord):
            self._watch_for_harm(record)
            if self.harm and not self.clipped:
                yield from self._all_findings()
            return
        facts = SummedLossFacts.of(record)
        rows, factor = facts.rows, facts.factor
        site = loss_call_site(facts)
        if rows is None or rows < 4 or factor is None or abs(factor) < 0.5 or site in self.reported:
            return
        where = (record.segment, record.seq, record.step, record.rank)
        place = facts.place
        rates = [_step_size(item) for item in facts.optimizers]
        rate = max((rate for rate in rates if rate is not None), default=None)
        scaled = None if rate is None else rate * rows * abs(factor)
        self.found.setdefault(
            site,
            (
                where,
                {
                    "function": facts.function,
                    "rows": rows,
                    "factor": factor,
                    "rate": rate,
                    "scaled": scaled,
                    "beside": next(iter(facts.beside_means), None),
                    "file": place.file,
                    "line": place.line,
                    "in": place.function,
                },
            ),
        )
        if scaled is not None and scaled >= self.limits.rate:
            self.harm = self.harm or f"learning rate times rows is {say(scaled)}"

    def finish(self) -> Iterable[Finding]:
        yield from self._all_findings()

    def _watch_for_harm(self, record: StepRecord) -> None:
        if not self.found or self.steps >= self.limits.steps:
            return
        self.steps += 1
        coefficient = record.values.get("clip_coef")
        self.clipped = self.clipped or (coefficient is not None and coefficient < 1)
        column = record.columns.get("param/update_ratio")
        ratios = [] if column is None else [v for v in column.values if math.isfinite(v)]
        if ratios and median_low(ratios) >= self.limits.update:
            share = median_low(ratios)
            self.harm = self.harm or f"one step changes the weights by {say(share)} of their norm"
        loss = record.values.get("loss")
        if loss is None:
            return
        if self.first is None:
            self.first = loss if math.isfinite(loss) else None
        elif not math.isfinite(loss):
            self.harm = self.harm or "the loss became NaN or Inf"
        elif 0 < self.first * self.limits.rise < min(loss, self.last):
            self.harm = self.harm or f"the loss rose from {say(self.first)} to {say(loss)}"
        self.last = loss

    def _all_findings(self) -> Iterable[Finding]:
        for site, (moment, about) in self.found.items():
            if site not in self.reported:
                self.reported.add(site)
                yield self._finding(site, moment, about)

    def _finding(self, site: str, moment: Moment, about: dict[str, Any]) -> Finding:
        harmful = bool(self.harm) and not self.clipped and about["rate"] is not None
        why = f"; {self.harm}" if harmful else ""
        beside = about.get("beside")
        if beside is not None:  # no optimizer evens out the weights of two terms
            why = (
                f"; {beside} in the same loss is a mean, so the sum weighs "
                f"{about['rows']} times as much"
            )
        return self.find(
            record_at(moment),
            f"the loss is a sum over {about['rows']} samples ({about['function']}), not a mean: "
            f"its gradient grows with the batch size{why}",
            subject=site,
            severity=None if harmful or beside is not None else Severity.INFO,
            where=Where(
                file=about["file"],
                line=about["line"],
                function=about["in"],
                op=about["function"],
                rank=moment[3] or None,
            ),
            remedies=[
                'Use reduction="mean", or divide the sum by the number of samples (tokens); then '
                "tune the learning rate again."
            ],
            rows=about["rows"],
            factor=about["factor"],
            rate=about["rate"],
            rate_times_rows=about["scaled"],
            beside=beside,
        )


def _step_size(optimizer: SteppingOptimizer) -> float | None:
    """Effective learning rate (with momentum) if the steps scale with the gradient."""
    rate, momentum = optimizer.lr, optimizer.momentum or 0.0
    if rate is None or "sgd" not in (optimizer.kind or "").lower():
        return None
    return rate / (1 - min(max(momentum, 0.0), 0.99))
