from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from headway.core.bound import Bound, History
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import StepRecord, moment_of, record_at
from headway.core.window import Window

FEWEST = 32
"""Smallest window, in rows of a log."""
LOSSES = 20
"""Number of losses after the onset that are compared with as many later ones."""


class GradientSpike(Check):
    """The gradient norm of one step is far outside the run's own recent spread.

    ## What it checks
    The global gradient norm before clipping, against the norms of the last 128 good steps of this
    run.

    ## Why it matters
    A single batch with a hundred times the usual norm moves the weights further than hundreds of
    good steps can repair. It also fills the optimizer's second moment, which then shrinks the
    updates for a long time.

    ## How it is measured
    On logarithms. A norm is out of bounds if it exceeds the median (or that of the last 16, if that
    is higher) by more than 8 robust standard deviations (median absolute deviation) and by more
    than a factor of 10. The first 20 steps are not judged. A value out of bounds is never added to
    the window, so spikes cannot hide later ones; eight in a row count as the run's new level. The
    guard's brake enforces the same bound before the step. A spike that was not skipped is reported
    when it has passed, or after 50 steps, at the step where it started.

    ## False alarms
    A norm that climbs over many steps, as when a learned variance shrinks, raises the median of the
    last 16 and stays in bounds. A spike that was applied and then passed is information only. So is
    one that stays while the loss falls: the run has left a plateau, or learns from new data.

    ## What to do
    Inspect that batch for a corrupt sample, an empty mask or an unusually long sequence. If spikes
    cluster, the learning rate is too high for the current state of the run, or the warm-up too
    short.

    ## References
    Chowdhery et al., "PaLM", section 5.1; OLMo-core's skip-step optimizer, whose 6-sigma rule this
    one replaces by medians so that a NaN cannot jam it.
    """

    code = "HD207"
    name = "gradient-spike"
    summary = "one step's norm far outside the run's own spread"
    needs = Needs(signals=("grad_norm",), span=100)
    scope = "training"
    explains = ()
    bound = Bound("grad_norm")

    @dataclass(frozen=True)
    class Limits:
        patience: int = 50
        """Steps after which a norm out of bounds has left its level permanently."""

    def start(self) -> None:
        self.histories: dict[str, History] = {}
        self.spikes: dict[str, dict[str, Any]] = {}
        """The open spike of each norm, if its step was applied."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        for name, norm in record.family("grad_norm"):
            history = self.histories.get(name) or self._open(name)
            # The brake recorded the limit that it enforced: judge by that one, not by a later one.
            enforced = record.values.get(name.replace("grad_norm", "grad_norm_limit"))
            outside = not norm <= enforced if enforced is not None else history.out_of_bounds(norm)
            limit = history.limit() if outside and enforced is None else enforced
            usual = history.window.median
            history.admit(norm, outside=outside)
            if not math.isfinite(norm):
                continue
            if outside and (record.held or name not in self.spikes):
                spike = {
                    "at": moment_of(record),
                    "norm": norm,
                    "usual": usual,
                    "limit": limit,
                    "steps": 0,
                    "first_losses": Window(LOSSES),
                    "losses": Window(LOSSES),
                }
                if record.held:
                    yield self._finding(name, spike, "update skipped, weights unchanged", held=True)
                    continue
                self.spikes[name] = spike
            if name in self.spikes and not record.held:
                yield from self._follow(record, name, norm)

    def finish(self) -> Iterable[Finding]:
        for name, spike in self.spikes.items():
            yield self._finding(
                name, spike, "it has not recovered by the end of the record", passed=True
            )

    def _open(self, name: str) -> History:
        """In a log with sparse rows, use a window that covers the same number of steps: 128 rows
        would include the large norms of the start, whose spread would hide every spike."""
        size, steps = self.bound.window, self.context.header.steps_per_value(name)
        bound = replace(self.bound, window=min(size, max(size // steps, FEWEST)))
        return self.histories.setdefault(name, History(bound))

    def _follow(self, record: StepRecord, name: str, norm: float) -> Iterable[Finding]:
        """Wait until the norm is back in bounds, and report how the spike ended."""
        spike = self.spikes[name]
        if norm <= spike["limit"]:
            del self.spikes[name]
            steps = spike["steps"]
            yield self._finding(
                name, spike, f"it recovered after {steps} step{'s' * (steps > 1)}", passed=True
            )
            return
        spike["steps"] += 1
        spike["norm"] = max(spike["norm"], norm)
        window = spike["first_losses"] if spike["steps"] <= LOSSES else spike["losses"]
        values = record.values
        window.push(values.get(name.replace("grad_norm", "loss"), values.get("loss", math.nan)))
        if spike["steps"] >= self.limits.patience:
            del self.spikes[name]
            falls = spike["losses"].median < spike["first_losses"].quantile(0.2)
            then = " while the loss falls" if falls else ""
            ending = f"it has not recovered in {spike['steps']} steps{then}"
            yield self._finding(name, spike, ending, passed=falls)

    def _finding(
        self,
        name: str,
        spike: dict[str, Any],
        ending: str,
        *,
        held: bool = False,
        passed: bool = False,
    ) -> Finding:
        norm, usual, limit = spike["norm"], spike["usual"], spike["limit"]
        applied = "" if held else "the update was applied; "
        remedies = [
            "Inspect the batch of this step for a corrupt sample, an empty mask or an unusual "
            "length."
        ]
        if not held and not passed:
            remedies.append("Resume from a checkpoint before this step and skip its batch.")
        return self.find(
            record_at(spike["at"]),
            f"{name} is {say(norm)}, {say(norm / usual)} times its usual {say(usual)} "
            f"(limit {say(limit)}); {applied}{ending}",
            subject=name,
            severity=Severity.INFO if passed else Severity.WARNING,
            remedies=remedies,
            norm=norm,
            median=usual,
            limit=limit,
            held=held,
            steps=spike["steps"],
        )
