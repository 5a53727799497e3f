from __future__ import annotations

import math
from collections.abc import Iterable

from holdfast.core.check import Check, Needs
from holdfast.core.findings import Finding, Severity
from holdfast.core.numbers import say
from holdfast.core.records import StepRecord


class NonfiniteLoss(Check):
    """The loss, or one of its named components, is NaN or infinite.

    ## What it checks
    Every loss for NaN, +Inf and -Inf. A named component alone (the mean over an empty selection,
    left out of the sum) is no fault.

    ## Why it matters
    The gradient of a non-finite loss is non-finite nearly everywhere. One optimizer step with it
    destroys the weights and the moments, and every later step is NaN too.

    ## How it is measured
    `isfinite` on the value of each step. Where components are known, the ones that are themselves
    non-finite are named: the total is only their sum.

    ## False alarms
    None on a per-step loss. A logged mean over several steps turns NaN for good in some loggers
    after one bad batch, so sources that average or filter their loss do not feed this check.

    ## What to do
    Find where the number was born: the op, the batch, or weights that were already bad. If the very
    first loss is non-finite the learning rate is innocent; look at the input, the labels and the
    initial weights. Holding the update back saves the weights. Clipping does not: a NaN norm turns
    every gradient NaN.

    ## References
    PyTorch, "Automatic Mixed Precision examples"; `torch.autograd.set_detect_anomaly`.
    """

    code = "HD101"
    name = "nonfinite-loss"
    severity = Severity.ERROR
    summary = "loss is NaN or Inf"
    needs = Needs(signals=("loss",), span=1, nonfinite=True)

    def start(self) -> None:
        self.finite_before = 0

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        for name, value in record.family("loss"):
            if math.isfinite(value):
                self.finite_before += 1
                continue
            guilty = [
                key.removeprefix("loss/")
                for key, part in record.values.items()
                if key.startswith("loss/") and not math.isfinite(part)
            ]
            source = f" (component {', '.join(guilty)})" if guilty else ""
            yield self.find(
                record,
                f"{name} is {say(value)}{source}"
                + ("; the update was held back, weights are untouched" if record.held else ""),
                subject=name,
                remedies=self._remedies(record),
                value=value,
                components=guilty,
                held=record.held,
                finite_before=self.finite_before,
            )

    def _remedies(self, record: StepRecord) -> list[str]:
        if self.finite_before == 0:
            return [
                "The very first loss is already non-finite, so the learning rate is innocent: look "
                "at the input, the labels and the initial weights."
            ]
        remedies = [
            "Find the op that made it: log, sqrt, division or exp near its singular point, or an "
            "overflow in half precision."
        ]
        if not record.held:
            remedies.append(
                "Weights were updated with it: go on from the last checkpoint before this step."
            )
        return remedies
