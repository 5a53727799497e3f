from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import Header, Moment, StepRecord, moment_of, record_at
from headway.core.signals import Signal

SIGNAL = "scaler_skipped"
ONE_STEP = Signal()


class SilentSkips(Check):
    """Optimizer steps are skipped silently.

    ## What it checks
    Steps that a GradScaler skips because of an overflow, and the count of skipped steps that other
    frameworks log. Steps that the guard skips do not count: those are reported.

    ## Why it matters
    A skipped step raises no error and logs nothing, while the loss is still logged, the schedule
    continues and the step counter counts. A run that skips half of its steps trains half as long as
    it reports.

    ## How it is measured
    At least 10, and more than a fifth, of the last 100 steps; or 8 in a row. The first 30 steps of
    a segment, in which a scaler finds its scale, are ignored, but a streak that continues beyond
    them counts in full. It is reported once, until the share has fallen to half of the limit.

    ## False alarms
    The first skips of a new scaler, and an occasional skip when it tries a larger scale, are normal
    and stay far below the limit.

    ## What to do
    Find what overflows and run it in fp32; bf16 instead of fp16 removes the cause if the hardware
    supports it. Step the scheduler only when the optimizer stepped, that is, when the scale did not
    fall during `scaler.update()`.

    ## References
    PyTorch, "Automatic Mixed Precision examples"; Megatron-LM's "number of skipped iterations".
    """

    code = "HD414"
    name = "silent-skips"
    summary = "optimizer steps are skipped silently"
    needs = Needs(signals=(SIGNAL,))
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.2
        """Share of the recent steps."""
        least: int = 10
        """Smallest number of skips for which the share counts."""
        in_a_row: int = 8
        recent: int = 100
        """Number of recent steps for the share."""
        grace: int = 30
        """First steps of a segment in which a scaler may still search for its scale."""

    def start(self) -> None:
        self.steps = 0
        self.row = 0.0
        self.skips: list[tuple[int, float]] = []
        """The recent skips: the step of the segment, and their number."""
        self.reported = False
        self.moments: list[tuple[int, Moment]] = []
        """In the log of another tool: the positions of the recent skips."""

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        span, skipped = self._count(record)
        if span == 0:
            return
        settled = self.steps >= self.limits.grace
        self.steps += span
        self.row = self.row + skipped if skipped == span else 0
        if settled and skipped:
            self.skips.append((self.steps, skipped))
            if self.context.rows:
                self.moments.append((self.steps, moment_of(record)))
        if self.skips:
            yield from self._judge(record, max(self.limits.recent, span))

    def _count(self, record: StepRecord) -> tuple[int, float]:
        """(steps that this record covers, number of them that were skipped)."""
        signal = self.context.header.signals.get(SIGNAL, ONE_STEP)
        values = [value for _, value in record.family(SIGNAL)]
        if not values:  # neither a scaler that did not skip nor a skip by the guard writes it
            return (0 if record.held or signal.span * signal.every > 1 else 1), 0
        value = max(values)  # of several optimizers, the one with most skips
        if not math.isfinite(value):
            return 0, 0
        skipped = value * signal.span if signal.fold == "mean" else value
        return signal.span, min(max(skipped, 0), signal.span)

    def _judge(self, record: StepRecord, recent: int) -> Iterable[Finding]:
        limits = self.limits
        self.skips = [item for item in self.skips if self.steps - item[0] < recent]
        self.moments = [item for item in self.moments if self.steps - item[0] < recent]
        count = sum(skipped for _, skipped in self.skips)
        share = count / min(recent, self.steps)
        if self.reported:
            self.reported = share > limits.share / 2
        elif (count >= limits.least and share > limits.share) or self.row >= limits.in_a_row:
            self.reported = True
            yield self._finding(record, count, recent)

    def _finding(self, record: StepRecord, count: float, recent: int) -> Finding:
        steps = min(recent, self.steps)
        row = f", the last {say(self.row)} in a row" if self.row > 1 else ""
        return self.find(
            record_at(self.moments[0][1]) if self.moments else record,
            f"{say(count)} of the last {steps} optimizer steps were skipped{row}: nothing was "
            f"learned in them, but the schedule and the step counter continued",
            remedies=[
                "Find what overflows and run it in fp32, or use bf16, which needs no scaler.",
                "Step the scheduler only when the optimizer stepped, that is, when the scale did "
                "not fall during `scaler.update()`.",
            ],
            skipped=count,
            steps=steps,
            in_a_row=self.row,
            share=count / steps,
        )
