from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Parameters, say_list, trained_weights
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import SetupRecord, StepRecord

AFTERWARDS = 3
"""Losses after a large update that show whether it did harm."""


class UpdateTooLarge(Check):
    """Single updates are as large as the weights themselves.

    ## What it checks
    The norm of the update against the norm of the weight, for every trained weight.

    ## Why it matters
    A step as large as the weight overwrites what was learned. If this repeats, the weight changes
    at random instead of being trained; the loss jumps, stalls, or ends in NaN.

    ## How it is measured
    Biases, norm layers and scalars are ignored. Either the ratio of a weight is above 1 in 5
    measured steps in a row: a warning, and an error if it is so for half of the weights of a
    measured step. Or one update is larger than the weight for half of them, and the median of the
    three losses after it is more than 10 times the loss before: an error.

    ## False alarms
    A weight that starts at 0 (LoRA's B, a zero-initialised head) or very small naturally has a
    ratio of about 1/t at step t, 3/t under a warm-up. So at step t the first limit is 10/t, until
    that falls to 1, and a single large update without harm is not reported. Noise around an optimum
    at 0 keeps the ratio high, but below 1. Skipped steps (by the guard or a GradScaler) are not
    counted.

    ## What to do
    Lower the learning rate (of that parameter group) by factors of 3 to 10 until the ratio is near
    1e-3 to 1e-2, and use a warm-up. Clipping the gradient has no effect under Adam, which
    normalises the size of the gradient.

    ## References
    Bottou's rule of thumb of a ratio near 1e-3; TheDeepChecker warns above 0.1, SageMaker
    Debugger above 10.
    """

    code = "HD308"
    name = "update-too-large"
    severity = Severity.ERROR
    summary = "updates are as large as the weights"
    needs = Needs(signals=("param/update_ratio", "loss"), kinds=(StepRecord, SetupRecord), span=1)
    explains = ("HD104", "HD202", "HD101", "HD201", "HD602", "HD509")
    yields_to = ("HD202",)

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 1.0
        """Update ÷ weight above which the weight is overwritten."""
        samples: int = 5
        """Consecutive measured steps of the weight that are needed."""
        fresh: float = 10.0
        """At step t the limit is this ÷ t, if that is larger than `ratio`."""
        loss_rise: float = 10.0
        """Factor by which the loss must rise after a single such update."""

    def start(self) -> None:
        self.weights: dict[int, int] = {}
        self.origin: int | None = None
        self.in_a_row: dict[int, int] = {}
        self.jump: dict[int, float] = {}
        """Position → ratio of one update larger than the weights, until its effect is known."""
        self.loss_before = 0.0
        self.losses_after: list[float] = []

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            parameters = Parameters.of(record)
            if parameters is not None:
                self.start()
                self.weights = {at: n for at, n in trained_weights(parameters).items() if n > 1}
            return
        if self.jump and not record.held and "loss" in record.values:
            yield from self._judge_jump(record)
        column = record.columns.get("param/update_ratio")
        if column is None or record.held or record.values.get("scaler_skipped"):
            return
        if self.origin is None:
            self.origin = record.step
        least = max(self.limits.ratio, self.limits.fresh / max(record.step - self.origin, 1))
        ratios = {at: ratio for at, ratio in column.items() if at in self.weights}
        large = {at: r for at, r in ratios.items() if self.limits.ratio < r < math.inf}
        for position in [at for at in self.in_a_row if ratios.get(at, math.inf) <= least]:
            del self.in_a_row[position]
        if large:
            self._remember(record, large, measured=len(ratios))
            yield from self._count(
                record, {at: r for at, r in large.items() if r > least}, measured=len(ratios)
            )

    def _count(
        self, record: StepRecord, large: dict[int, float], *, measured: int
    ) -> Iterable[Finding]:
        for position in large:
            self.in_a_row[position] = self.in_a_row.get(position, 0) + 1
        if self.limits.samples not in [self.in_a_row[position] for position in large]:
            return
        ratios = {at: r for at, r in large.items() if self.in_a_row[at] >= self.limits.samples}
        yield self._finding(
            record,
            ratios,
            f"{len(ratios)} of {measured} measured weights change by more than "
            f"{say(self.limits.ratio)} times their norm in each of {self.limits.samples} "
            "measured steps",
            Severity.ERROR if 2 * len(ratios) >= measured else Severity.WARNING,
        )

    def _remember(self, record: StepRecord, large: dict[int, float], *, measured: int) -> None:
        loss = record.values.get("loss", math.nan)
        if not self.jump and 2 * len(large) >= measured and 0 < loss < math.inf:
            self.jump, self.loss_before, self.losses_after = large, loss, []

    def _judge_jump(self, record: StepRecord) -> Iterable[Finding]:
        loss = record.values["loss"]
        self.losses_after.append(math.inf if math.isnan(loss) else loss)
        if len(self.losses_after) < AFTERWARDS:
            return
        after, jump = median_low(self.losses_after), self.jump
        self.jump = {}
        if after > self.limits.loss_rise * self.loss_before:
            yield self._finding(
                record,
                jump,
                f"{len(jump)} weights changed by more than {say(self.limits.ratio)} times their "
                f"norm in one update, and the loss went from {say(self.loss_before)} to "
                f"{say(after)}",
                Severity.ERROR,
            )

    def _finding(
        self, record: StepRecord, ratios: dict[int, float], what: str, severity: Severity
    ) -> Finding:
        names = [self.context.name("param", position) for position in ratios]
        worst = max(ratios, key=lambda position: ratios[position])
        return self.find(
            record,
            f"{what}: {say_list(names)} (largest: {self.context.name('param', worst)}, "
            f"{say(ratios[worst])} times)",
            severity=severity,
            where=Where(module=self.context.name("param", worst), rank=record.rank or None),
            remedies=[
                "Lower the learning rate (of their parameter group) by factors of 3 to 10 until "
                "the ratio is near 1e-2 or below, and use a warm-up.",
            ],
            tensors=names[:LISTED],
            tensor_count=len(names),
            largest_ratio=ratios[worst],
            limit=self.limits.ratio,
            lr=record.values.get("lr"),
        )
