from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.optimizer_facts import LowPrecisionUpdateFacts
from headway.core.records import Header, Moment, SetupRecord, StepRecord, moment_of, record_at

SIGNAL = "update_lost_share"


class UpdateLostToRounding(Check):
    """Updates of 16-bit weights are smaller than the resolution of the weights.

    ## What it checks
    bf16 and fp16 weights in an optimizer: how many elements are bitwise unchanged by a step
    although they have a gradient.

    ## Why it matters
    bf16 has 8 bits of precision: a weight of 1 cannot change by less than 0.4 %. At a usual
    learning rate the update is smaller, the sum rounds back to the weight, and the step has no
    effect, every time.

    ## How it is measured
    The share of elements with a gradient that are bitwise unchanged after the step, over all
    matrices. The median of at least 3 steps must be above a half, and above three quarters for an
    error.

    ## False alarms
    Skipped steps, a rising learning rate (warm-up), and a learning rate below half of its peak do
    not count. Optimizers that keep the rounding error (Kahan summation, fp32 master weights) are
    ignored. fp32 weights under autocast are not affected.

    ## What to do
    Keep fp32 weights and run the forward pass under autocast; or use an optimizer with fp32
    master weights, stochastic rounding or Kahan summation.

    ## References
    pytorch/ao#1124; Zamirai et al., "Revisiting BFloat16 training".
    """

    code = "HD310"
    name = "update-lost-to-rounding"
    severity = Severity.ERROR
    summary = "bf16/fp16 weights: the update is below the weight's resolution"
    needs = Needs(signals=(SIGNAL,), kinds=(StepRecord, SetupRecord))
    points_at = ("half", "optimizer")
    explains = (*NOTHING_MOVES, *POOR_FIT)

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.5
        """Share of the elements with a gradient whose update is lost in the median step."""
        bad_share: float = 0.75
        """The same, for an error."""
        samples: int = 3
        """Measured steps that are needed."""
        short_samples: int = 2
        """The same, at the end of a run too short for more, if the share is that of an error."""

    def start(self) -> None:
        self.shares: list[float] = []
        self.rate, self.peak = 0.0, 0.0
        self.tensors: list[str] = []
        self.dtype = "16-bit"
        self.first: Moment = (0, 0, 0, 0)
        self.reported = False

    def begin(self, header: Header) -> None:
        self.shares, self.reported = [], False

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            if record.topic == "low-precision-update":
                facts = LowPrecisionUpdateFacts.of(record)
                self.tensors = facts.tensors
                self.dtype = facts.dtype or self.dtype
            return
        counts = self._rate_holds(record)
        share = record.values.get(SIGNAL, math.nan)
        if self.reported or not counts or record.held or not 0.0 <= share <= 1.0:
            return
        if not self.shares:
            self.first = moment_of(record)
        self.shares = [*self.shares[-19:], share]
        usual = median_low(self.shares)
        if len(self.shares) >= self.limits.samples and usual > self.limits.share:
            self.reported = True
            yield self._finding(usual)

    def finish(self) -> Iterable[Finding]:
        short = self.limits.short_samples <= len(self.shares) < self.limits.samples
        if short and not self.reported and median_low(self.shares) > self.limits.bad_share:
            yield self._finding(median_low(self.shares))

    def _rate_holds(self, record: StepRecord) -> bool:
        rate = record.values.get("lr", self.rate)
        if not math.isfinite(rate):
            return False
        rising = self.rate > 0 and rate > self.rate * 1.001
        self.rate, self.peak = rate, max(self.peak, rate)
        if rising:
            self.shares = []
        return not rising and rate >= self.peak / 2

    def _finding(self, share: float) -> Finding:
        names = self.tensors
        return self.find(
            record_at(self.first),
            f"{say(100 * share)} % of the elements of {self.dtype} weights that have a gradient "
            f"do not change in a step at a learning rate of {say(self.rate)}: the update is "
            f"below their resolution" + (f" ({say_list(names)})" if names else ""),
            severity=Severity.ERROR if share > self.limits.bad_share else Severity.WARNING,
            where=Where(module=names[0] if names else None, rank=self.first[3] or None),
            remedies=[
                "Keep fp32 weights and run the forward pass under `torch.autocast` (bf16).",
                "Or use an optimizer with fp32 master weights, stochastic rounding or Kahan "
                "summation.",
            ],
            share=share,
            limit=self.limits.share,
            samples=len(self.shares),
            lr=self.rate,
            tensors=names,
        )
