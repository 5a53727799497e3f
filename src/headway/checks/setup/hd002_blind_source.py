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
"""First rows in which a loss scaler may search for its scale: non-finite norms are normal there."""


class BlindSource(Check):
    """The log hides what checks need, or contains a value that is not what its name says.

    ## What it checks
    How the loss and the gradient norm in another tool's log were computed: filtered, averaged, or
    measured after clipping. In a preflight: whether the norms that the script itself reads, to log
    them, are those of gradients that still include a GradScaler's scale.

    ## Why it matters
    No findings must not look like no problems. A filtered loss never shows NaN, a mean over many
    steps hides a spike, and a norm measured after clipping never exceeds the limit, so it cannot
    show an explosion. A norm measured before `scaler.unscale_` is 65536 times too large and changes
    with the scale: it shows an explosion where there is none.

    ## How it is measured
    From the description of the log's signals. A norm counts as measured after clipping if a large
    part of all rows have one round value and none is above it. It is information, and a warning if
    non-finite gradients occur next to a filtered loss. A norm that the script reads is compared
    with the result of backward; it is a warning if at least half of the gradients are read like
    that in one step.

    ## False alarms
    It says nothing about the run, only about its log. Gradients that are divided by hand before
    they are read pass, and so does clipping, which has its own check.

    ## What to do
    Log the loss of single steps unfiltered (`logging_nan_inf_filter=False`, `logging_steps=1`, at
    least around the problem), and the norm that `clip_grad_norm_` returns: that is the one before
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
        """Whether norms were non-finite after the rows in which a scaler searches for its scale."""
        self.norms = self.latest = 0
        """Rows with a norm, and the latest of them that was not finite."""
        self.zero_loss = False
        self.reported = False

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
                # A loss of 0 in the same row has its own finding.
                self.zero_loss = self.zero_loss or record.values.get("loss") == 0
        return ()

    def _misread(self, record: SetupRecord) -> Iterable[Finding]:
        facts = ScaledReadingFacts.of(record)
        scale, tensors = facts.scale, facts.tensors
        added, true = facts.added, facts.true_norm
        if self.reported or scale is None or added is None or true is None:
            return
        self.reported = True
        sum_of = f"those of {tensors} tensors add up to" if tensors and tensors > 1 else "it is"
        yield self.find(
            record,
            f"the gradient norms read here are still multiplied by the loss scale {say(scale)}: "
            f"{sum_of} {say(added)}, but the true gradient norm is {say(true)}",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Read norms after `scaler.unscale_(optimizer)`, or log the result of "
                "`clip_grad_norm_` after it: that is the norm before clipping.",
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
            hidden.append("NaN and Inf are filtered out of the loss")
            remedies.append(
                "Set `logging_nan_inf_filter=False` so that the log shows the real loss."
            )
        if loss.fold == "mean" and loss.span > 1:
            hidden.append(
                f"the loss is a mean over {loss.span} steps, which hides the spike of one step"
                if loss.per_label == 1
                else "the loss is a mean over many steps, which hides the spike of one step"
            )
        if "clipped_grad_norm" in signals and "grad_norm" not in signals:
            hidden.append(
                "the gradient norm is measured after clipping, so it never shows a spike or growth"
            )
            remedies.append(
                "Log the norm before clipping: `clip_grad_norm_` returns it (call it after "
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
