from __future__ import annotations

import math
from collections.abc import Iterable

from holdfast.core.bound import Bound, History
from holdfast.core.check import Check, Needs
from holdfast.core.findings import Finding, Severity
from holdfast.core.numbers import say
from holdfast.core.records import StepRecord


class GradientSpike(Check):
    """One step's gradient norm is far outside the run's own recent spread.

    ## What it checks
    The global gradient norm before clipping, against the norms of this run's last 128 good steps.

    ## Why it matters
    A single batch a hundred times the usual norm moves the weights further than hundreds of good
    steps can mend, and fills the optimizer's second moment, which then shrinks updates for long.

    ## How it is measured
    On logarithms: out of bounds is a norm above the median by more than 8 robust standard deviations
    (median absolute deviation) and by more than a factor of 10. Nothing is judged in the first 20
    steps. A value out of bounds is never learned, so spikes cannot hide later ones; eight in a row
    are taken for the run's new level. The live brake enforces the same bound before the step.

    ## False alarms
    A norm that grows steadily widens its own spread and stays in bounds. A spike that passed by
    itself, with the next steps back at their level, is information only.

    ## What to do
    Look at that batch: a corrupt sample, an empty mask, a rare long sequence. If spikes cluster,
    the learning rate is too high for the run's present state, or the warm-up too short.

    ## References
    Chowdhery et al., "PaLM", section 5.1; OLMo-core's skip-step optimizer, whose 6-sigma rule this
    one replaces by medians so that a NaN cannot jam it.
    """

    code = "HD207"
    name = "gradient-spike"
    summary = "one step's norm far outside the run's own spread"
    needs = Needs(signals=("grad_norm",), span=1)
    bound = Bound("grad_norm")

    def start(self) -> None:
        self.histories: dict[str, History] = {}

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        for name, norm in record.family("grad_norm"):
            history = self.histories.setdefault(name, History(self.bound))
            # The brake wrote down the limit it enforced: judge by that one, not by a later one.
            enforced = record.values.get(name.replace("grad_norm", "grad_norm_limit"))
            outside = not norm <= enforced if enforced is not None else history.out_of_bounds(norm)
            limit = history.limit() if enforced is None else enforced
            usual = history.window.median
            history.admit(norm, outside=outside)
            if outside and math.isfinite(norm):
                yield self._finding(record, name, norm, usual, limit)

    def _finding(
        self, record: StepRecord, name: str, norm: float, usual: float, limit: float
    ) -> Finding:
        what = f"{name} is {say(norm)}, {say(norm / usual)} times its usual {say(usual)}"
        then = "; the update was held back" if record.held else "; the update was applied"
        return self.find(
            record,
            f"{what} (limit {say(limit)}){then}",
            subject=name,
            severity=Severity.WARNING if record.held else Severity.INFO,
            remedies=["Look at this step's batch: a corrupt sample, an empty mask, a rare length."],
            norm=norm,
            median=usual,
            limit=limit,
            held=record.held,
        )
