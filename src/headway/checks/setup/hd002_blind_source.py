from __future__ import annotations

import math
from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.optimizer_facts import ScaledReadingFacts
from headway.core.records import Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.signals import Signal

SEARCH = 20
"""So many rows may a loss scaler take to find its scale: what is non-finite there is no fault."""


class BlindSource(Check):
    """The log hides what checks need, or shows a number that is not what it is called.

    ## What it checks
    How the loss and the gradient norm of another tool's log were made: filtered, averaged, or taken
    after clipping. In a preflight: whether the norms that the script itself reads, to log them, are
    those of gradients that a GradScaler's scale is still in.

    ## Why it matters
    Silence must not read as health. A filtered loss never shows NaN, a mean over many steps hides a
    spike, and a norm taken after clipping can never show an explosion: it ends at the limit. A norm
    taken before `scaler.unscale_` is 65536 times too large and moves with the scale: it shows an
    explosion where there is none.

    ## How it is measured
    From the description of the log's signals. A norm is taken for one after clipping where a large
    part of all rows sit at one round number and none is above it. It is information; a warning
    where it matters: non-finite gradients were seen beside a loss that is filtered. A norm that the
    script reads is compared with what backward left; it is a warning where at least half of the
    gradients are read like that in one step.

    ## False alarms
    It says nothing about the run, only about its log. Gradients divided by hand before they are
    read pass, and so does clipping, which has a check of its own.

    ## What to do
    Log the loss of single steps unfiltered (`logging_nan_inf_filter=False`, `logging_steps=1` at
    least around the trouble), and the norm that `clip_grad_norm_` returns: that is the one before
    clipping. With a GradScaler, read norms after `scaler.unscale_(optimizer)`; the norm of several
    tensors is the root of the sum of their squares, not the sum of their norms.

    ## References
    Hugging Face `TrainingArguments.logging_nan_inf_filter`; PyTorch, `clip_grad_norm_`.
    """

    code = "HD002"
    name = "blind-source"
    summary = "the source hides what a check needs"
    needs = Needs(kinds=(StepRecord, SetupRecord), topics=("scaled-reading",))
    explains = ()

    def start(self) -> None:
        self.first: Moment | None = None
        self.nonfinite = False
        """Whether norms were non-finite after those in which a scaler looks for its scale."""
        self.norms = self.latest = 0
        """Rows with a norm, and the latest of them that was not finite."""
        self.zero_loss = False
        self.told = False

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        return self._misread(record) if isinstance(record, SetupRecord) else ()

    def observe_row(self, record: StepRecord) -> Iterable[Finding]:
        if record.values:
            self.first = self.first or moment_of(record)
            norm = record.values.get("grad_norm")
            if norm is None:
                return ()
            self.norms += 1
            if not math.isfinite(norm):
                self.latest = self.norms
                self.nonfinite = self.nonfinite or self.norms > SEARCH
                # A loss of 0 beside it has a finding of its own.
                self.zero_loss = self.zero_loss or record.values.get("loss") == 0
        return ()

    def _misread(self, record: SetupRecord) -> Iterable[Finding]:
        facts = ScaledReadingFacts.of(record)
        scale, tensors = facts.scale, facts.tensors
        added, true = facts.added, facts.true_norm
        if self.told or scale is None or added is None or true is None:
            return
        self.told = True
        sum_of = f"those of {tensors} tensors add up to" if tensors and tensors > 1 else "it is"
        yield self.find(
            record,
            f"the gradient norms read here are still multiplied by the scaler's {say(scale)}: "
            f"{sum_of} {say(added)}, and the gradient's norm is {say(true)}",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Read norms after `scaler.unscale_(optimizer)`, or log what `clip_grad_norm_` "
                "returns then: that is the norm before clipping.",
                "The norm of several tensors is the root of the sum of their squares, not the sum "
                "of their norms.",
            ],
            scale=scale,
            added=added,
            true_norm=true,
        )

    def finish(self) -> Iterable[Finding]:
        if self.first is None:
            return
        signals = self.context.header.signals
        loss, hidden, remedies = signals.get("loss", Signal()), [], []
        if loss.nonfinite == "filtered":
            hidden.append("NaN and Inf are filtered out of the loss, so it shows neither")
            remedies.append(
                "Set `logging_nan_inf_filter=False`, so that the log shows what the loss really is."
            )
        if loss.fold == "mean" and loss.span > 1:
            hidden.append(
                f"the loss is a mean over {loss.span} steps, in which the spike of one step is lost"
                if loss.per_label == 1
                else "the loss is a mean over many steps, in which the spike of one step is lost"
            )
        if "clipped_grad_norm" in signals and "grad_norm" not in signals:
            hidden.append(
                "the gradient norm was taken after clipping, so it never shows a spike or a growth"
            )
            remedies.append(
                "Log the norm before clipping: it is what `clip_grad_norm_` returns (call it after "
                "`scaler.unscale_`)."
            )
        if not hidden:
            return
        lasts = 0 < self.latest == self.norms
        matters = (self.nonfinite or lasts) and loss.nonfinite == "filtered" and not self.zero_loss
        yield self.find(
            record_at(self.first),
            "this log hides what some checks need: " + "; ".join(hidden),
            severity=None if matters else Severity.INFO,
            remedies=remedies,
            filtered=loss.nonfinite == "filtered",
            span=loss.span,
            after_clipping="clipped_grad_norm" in signals and "grad_norm" not in signals,
        )
