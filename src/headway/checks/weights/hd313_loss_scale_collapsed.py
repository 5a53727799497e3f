from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Header, Moment, StepRecord, moment_of, record_at
from headway.core.signals import Signal


class LossScaleCollapsed(Check):
    """The loss scale keeps being halved: nearly every step overflows and is skipped.

    ## What it checks
    The scale of a GradScaler, or of the scaler of DeepSpeed, Megatron, Apex or fairseq.

    ## Why it matters
    A scaler halves its scale when a gradient overflows, and skips that step. A scale that keeps
    falling means that nothing is learned any more: the overflow does not come from the scale, but
    from the values themselves. The skipped steps raise no error.

    ## How it is measured
    A scale has collapsed if it has fallen to 1 or below, at least 16 times below its highest value;
    or if it was halved 8 times within 100 steps without a rise, counted after the first 50 steps of
    a segment. A scale that is always 1 (bf16, or a scaler that is switched off) has not fallen.

    ## False alarms
    A scaler starts too high on purpose (65536; Megatron at 2^32) and is halved in the first steps:
    that is calibration. So is a single halving every few hundred steps later on.

    ## What to do
    A falling scale means overflow, not underflow: a larger or a new scale does not help, and a new
    `GradScaler` discards the calibration of this one. If the loss is NaN, the weights may already
    be corrupt: go back to a checkpoint before the fall. Otherwise find the module whose values
    exceed 65504 and run it in fp32, or use bf16, which has the range of fp32 and needs no scaler.

    ## References
    PyTorch, "Automatic Mixed Precision", `GradScaler`; the OPT-175B logbook;
    pytorch/pytorch#55585.
    """

    code = "HD313"
    name = "loss-scale-collapsed"
    severity = Severity.ERROR
    summary = "the scaler keeps halving; steps are skipped"
    needs = Needs(signals=("loss_scale",))
    explains = ("HD201", "HD414", "HD105", "HD306")

    @dataclass(frozen=True)
    class Limits:
        floor: float = 1.0
        """A scale that fell to this or below has collapsed."""
        halvings: int = 8
        """Number of halvings without a rise that is a collapse."""
        within: int = 100
        """Steps within which these halvings must occur."""
        grace: int = 50
        """First steps of a segment in which the scaler may still search for its scale."""

    def start(self) -> None:
        self.highest: dict[str, float] = {}
        self.reported: dict[str, bool] = {}
        self._forget_segment()

    def begin(self, header: Header) -> None:
        self._forget_segment()  # the resumed run may have a new scaler that searches for its scale

    def _forget_segment(self) -> None:
        self.first_step: int | None = None
        self.last: dict[str, tuple[int, float]] = {}
        self.falls: dict[str, list[tuple[int, float]]] = {}
        self.began: dict[str, tuple[Moment, int]] = {}
        """Where the falls without a rise started, and the step of the latest."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        if self.first_step is None:
            self.first_step = record.step
        for name, scale in record.family("loss_scale"):
            if not 0 <= scale < math.inf:
                continue
            step, last = self.last.get(name, (record.step, scale))
            self.last[name] = (record.step, scale)
            if scale < last:
                finding = self._fell(record, name, last, step)
                if finding is not None:
                    yield finding
            elif scale > last:
                self.falls.pop(name, None)
                self.began.pop(name, None)
                self.reported[name] = False
            self.highest[name] = max(self.highest.get(name, scale), scale)

    def _fell(self, record: StepRecord, name: str, last: float, since: int) -> Finding | None:
        limits, scale = self.limits, self.last[name][1]
        every = self.context.header.signals.get(name, Signal()).every
        onset, latest = self.began.get(name, (moment_of(record), record.step))
        if record.step - latest > max(limits.within, 5 * every):
            onset = moment_of(record)  # earlier falls were the scaler's search
        self.began[name] = (onset, record.step)
        within = max(limits.within, 10 * every)
        falls = [
            (step, halvings)
            for step, halvings in self.falls.get(name, ())
            if record.step - step < within
        ]
        elapsed = max(record.step - since, 1)
        if record.step - (self.first_step or 0) >= limits.grace and elapsed <= within:
            halvings = math.log2(last / scale) if scale > 0 else math.inf
            # A scaler halves once per step. A larger drop was set by hand, and is not an overflow.
            falls.append((record.step, min(halvings, elapsed)))
        self.falls[name] = falls
        count = sum(halvings for _, halvings in falls)
        sunk = scale <= limits.floor and scale <= self.highest[name] / 16
        if self.reported.get(name) or not (sunk or count >= limits.halvings):
            return None
        self.reported[name] = True
        return self._finding(record, name, scale, count)

    def _finding(self, record: StepRecord, name: str, scale: float, count: float) -> Finding:
        highest = self.highest[name]
        how = (
            f"{count:.0f} halvings in the last {self.limits.within} steps"
            if count >= self.limits.halvings
            else f"limit {say(self.limits.floor)}"
        )
        return self.find(
            # In a log of few rows the finding is placed at the beginning of the collapse.
            record_at(self.began[name][0]) if self.context.rows else record,
            f"{name} fell from {say(highest, 6)} to {say(scale, 6)} ({how}): gradients keep "
            f"overflowing, and every such step is skipped",
            subject=name,
            remedies=[
                "Check the loss: if it is NaN, the weights may already be corrupt; go back to a "
                "checkpoint before the scale started to fall.",
                "Find the module whose values exceed 65504 and run it in fp32, or use bf16, which "
                "has the range of fp32 and needs no scaler.",
                "Do not raise the scale or create a new GradScaler: it does not cause the "
                "overflow.",
            ],
            scale=scale,
            highest=highest,
            halvings=count,
            began_step=self.began[name][0][2],
        )
