from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.check import Check, Needs
from holdfast.core.findings import Finding, Severity, Where
from holdfast.core.numbers import say
from holdfast.core.parameters import LISTED, Parameters, some
from holdfast.core.records import SetupRecord, StepRecord
from holdfast.core.trained import trained_weights


class UpdateTooLarge(Check):
    """Single updates are as large as the weights themselves.

    ## What it checks
    The norm of the update against the norm of the weight, for every trained weight.

    ## Why it matters
    A step of a third of the weight or more overwrites what was learned. Step after step, the weight
    is thrown about instead of trained; the loss jumps, stalls, or ends in NaN.

    ## How it is measured
    A weight counts when its ratio was above 0.3 in 5 samples in a row; biases, norm layers and
    scalars are left out. All such weights are one finding: an error when they are at least half of
    the model's weights, a warning otherwise.

    ## False alarms
    A weight that starts at 0 (LoRA's B, a zero-initialised head) or very small has a ratio of about
    1/t at step t by itself, 3/t under a warm-up. So t steps into the run the limit is 10/t, until
    that falls to 0.3. Steps held back and steps a GradScaler skipped are not counted.

    ## What to do
    Lower the learning rate (of that parameter group) by factors of 3 to 10 until the ratio is near
    1e-3 to 1e-2, and warm it up. Clipping the gradient changes nothing under Adam, which divides
    the gradient's size out again.

    ## References
    Bottou's rule of thumb of a ratio near 1e-3; TheDeepChecker warns above 0.1, SageMaker Debugger
    above 10.
    """

    code = "HD308"
    name = "update-too-large"
    severity = Severity.ERROR
    summary = "update/weight ratio destroys the weight"
    needs = Needs(signals=("param/update_ratio",), kinds=(StepRecord, SetupRecord))

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 0.3
        """Update ÷ weight above this destroys the weight."""
        samples: int = 5
        """So many samples of the weight in a row."""
        fresh: float = 10.0
        """t steps into the run the limit is this ÷ t, where that is more."""

    def start(self) -> None:
        self.weights: dict[int, int] = {}
        self.origin: int | None = None
        self.in_a_row: dict[int, int] = {}

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            parameters = Parameters.of(record)
            if parameters is not None:
                self.weights = trained_weights(parameters)
                self.origin = None
                self.in_a_row.clear()
            return
        column = record.columns.get("param/update_ratio")
        if column is None or record.held or record.values.get("scaler_skipped"):
            return
        if self.origin is None:
            self.origin = record.step
        limit = max(self.limits.ratio, self.limits.fresh / max(record.step - self.origin, 1))
        ratios = {}
        newly = False
        for position, ratio in column.items():
            if ratio <= limit:
                self.in_a_row.pop(position, None)
            elif math.isfinite(ratio) and self.weights.get(position, 1) > 1:
                self.in_a_row[position] = count = self.in_a_row.get(position, 0) + 1
                if count >= self.limits.samples:
                    ratios[position] = ratio
                    newly = newly or count == self.limits.samples
        if newly:
            yield self._finding(record, ratios)

    def _finding(self, record: StepRecord, ratios: dict[int, float]) -> Finding:
        names = [self.context.name("param", position) for position in ratios]
        worst = max(ratios, key=lambda position: ratios[position])
        most = 2 * len(ratios) >= len(self.weights)
        return self.find(
            record,
            f"{len(ratios)} of {len(self.weights)} weights are moved by more than "
            f"{say(self.limits.ratio)} of themselves in each of {self.limits.samples} samples, "
            f"{self.context.name('param', worst)} by {say(ratios[worst])}: {some(names)}",
            severity=Severity.ERROR if most else Severity.WARNING,
            where=Where(module=names[0], rank=record.rank or None),
            remedies=[
                "Lower the learning rate"
                + ("" if most else " of their parameter group")
                + " by factors of 3 to 10 until the ratio is near 1e-2 or below, and warm it up.",
            ],
            tensors=names[:LISTED],
            tensor_count=len(names),
            weights=len(self.weights),
            largest_ratio=ratios[worst],
            limit=self.limits.ratio,
            lr=record.values.get("lr"),
        )
