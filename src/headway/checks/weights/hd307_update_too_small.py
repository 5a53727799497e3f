from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

from headway.core.check import Check, Needs
from headway.core.facts import Parameters, trained_weights
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Column, SetupRecord, StepRecord


class UpdateTooSmall(Check):
    """The updates are too small, relative to the weights, to have an effect.

    ## What it checks
    The norm of the update against the norm of the weight, over all trained weights.

    ## Why it matters
    Healthy runs change a weight by about a thousandth per step. At a ten-millionth, a hundred
    thousand steps in the same direction change it by one percent: the run learns nothing in a
    reasonable time.

    ## How it is measured
    The median ratio over the weights of a measured step, without biases and norm layers. It is
    reported if it stays below 1e-7 in 20 measured steps in a row and was never above it before in
    this run, while the learning rate is neither rising (warm-up) nor below a tenth of its own peak
    (decay).

    ## False alarms
    A converged run makes small updates too, but it changed before. A run that is restarted from
    there has gradients below a thousandth of the weights, which is information only. Warm-up, the
    end of a decay and skipped steps (by the guard or a GradScaler) are not counted. A ratio of
    exactly 0 is HD306 (a weight that does not change at all) and is ignored.

    ## What to do
    Look for what divides the step: a learning rate with too many zeros, clipping before
    `scaler.unscale_` (the limit is then divided by the scale), a loss that is scaled down twice.
    Then raise the learning rate.

    ## References
    Bottou's rule of thumb of a ratio near 1e-3; SageMaker Debugger warns below 1e-8,
    DeepDiagnosis below 1e-5.
    """

    code = "HD307"
    name = "update-too-small"
    summary = "the update/weight ratio is too small to have an effect"
    needs = Needs(signals=("param/update_ratio", "lr"), kinds=(StepRecord, SetupRecord))
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 1e-7
        """Median update/weight ratio below which nothing is learned."""
        samples: int = 20
        """Consecutive measured steps that are needed."""

    def start(self) -> None:
        self.weights: dict[int, int] = {}
        self.peak = 0.0
        self.in_a_row = 0
        self.settled = False
        """Whether the answer is known: the weights changed once, or it was reported."""

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            parameters = Parameters.of(record)
            if parameters is not None:
                self.weights = trained_weights(parameters)
            return
        if self.settled:
            return
        rate = record.values.get("lr", self.peak)
        if rate > self.peak and math.isfinite(rate):
            if rate > self.peak * 1.001:
                self.in_a_row = 0  # still rising: the intended learning rate is not reached yet
            self.peak = rate
        column = record.columns.get("param/update_ratio")
        if column is None or record.held or record.values.get("scaler_skipped"):
            return
        ratio = self._median(record, column)
        if ratio is None or rate < self.peak / 10:
            return
        self.in_a_row += 1
        self.settled = ratio >= self.limits.ratio or self.in_a_row >= self.limits.samples
        if ratio < self.limits.ratio and self.settled:
            yield self._finding(record, ratio)

    def _median(self, record: StepRecord, column: Column) -> float | None:
        moved = [
            ratio
            for position, ratio in column.items()
            if 0.0 < ratio < math.inf and (not self.weights or position in self.weights)
        ]
        return median_low(moved) if moved else self._lost_ratio(record, column)

    def _lost_ratio(self, record: StepRecord, column: Column) -> float | None:
        """The ratio if every weight's update is lost to rounding, estimated from the biases."""
        norms = record.columns.get("param/grad_norm")
        sizes = record.columns.get("param/weight_norm")
        if norms is None or sizes is None:
            return None
        known = {at: size for at, size in sizes.items() if size > 0.0}
        slopes = {
            at: slope
            for at, norm in norms.items()
            if at in known and 0.0 < (slope := norm / known[at]) < math.inf
        }
        moves = [r / slopes[at] for at, r in column.items() if at in slopes and 0.0 < r < math.inf]
        still = [
            slopes[at]
            for at, ratio in column.items()
            if at in slopes and ratio == 0.0 and (not self.weights or at in self.weights)
        ]
        return median_low(moves) * median_low(still) if moves and still else None

    def _finding(self, record: StepRecord, ratio: float) -> Finding:
        clip = record.values.get("clip_coef", 1.0)
        clipped = f", gradients are clipped by a factor of {say(clip)}" if clip < 0.1 else ""
        # Without learning rate and clipping, the ratio is gradient ÷ weight: small once converged.
        rate_is_small = ratio >= 1e-3 * self.peak * min(clip, 1.0)
        return self.find(
            record,
            f"the median update is {say(ratio)} of its weight (limit {say(self.limits.ratio)}) at "
            f"a learning rate of {say(self.peak)}, in all {self.in_a_row} measured steps{clipped}: "
            f"the weights stay at their initial values",
            severity=Severity.WARNING if rate_is_small else Severity.INFO,
            remedies=self._remedies(clipped=clip < 0.1, rate_is_small=rate_is_small),
            ratio=ratio,
            limit=self.limits.ratio,
            lr=self.peak,
            clip_coef=record.values.get("clip_coef"),
            samples=self.in_a_row,
        )

    @staticmethod
    def _remedies(*, clipped: bool, rate_is_small: bool) -> list[str]:
        if clipped:
            return [
                "With a GradScaler, call scaler.unscale_(optimizer) before clipping, because "
                "otherwise the limit is divided by the scale. Without one, raise the limit."
            ]
        if rate_is_small:
            return ["Raise the learning rate by factors of 10 until the ratio is near 1e-3."]
        return [
            "The gradients are small, not the learning rate: the run has already converged, the "
            "gradient vanishes, or the loss is scaled down."
        ]
