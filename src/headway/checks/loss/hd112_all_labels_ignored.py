from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import loss_call_site
from headway.checks.symptoms import NONFINITE_OR_RANK
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.records import SetupRecord


class AllLabelsIgnored(Check):
    """Every label of a batch is the ignore index: the mean is 0 divided by 0.

    ## What it checks
    The labels of every call of `cross_entropy` and `nll_loss` that is trained on.

    ## Why it matters
    The mean over no labels is NaN, its gradients are NaN, and one such batch ruins all weights. It
    may occur once per epoch: a sequence that is truncated before its answer, an image without an
    object.

    ## How it is measured
    By counting: all labels equal `ignore_index`, and the reduction is the mean.

    ## False alarms
    Batches in which most labels are ignored (masked language models, prompts) are fine. With
    `reduction="sum"` or `"none"` the loss of such a batch is 0: information only.

    ## What to do
    Skip such batches, or compute the mean by hand: `reduction="sum"`, then `/ (labels !=
    ignore_index).sum().clamp(min=1)`. If every batch is affected, check how the labels are masked.

    ## References
    pytorch/pytorch#70348.
    """

    code = "HD112"
    name = "all-labels-ignored"
    severity = Severity.ERROR
    summary = "every label is the ignore index: the mean is 0/0"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call",))
    explains = (*NONFINITE_OR_RANK, "HD103", "HD207", "HD313", "HD414")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        labels, ignored = facts.labels, facts.ignored
        site = loss_call_site(facts)
        if not labels or ignored is None or ignored < labels:
            return
        mean = facts.reduction == "mean"
        index = facts.ignore_index
        bad = mean or facts.nonfinite
        outcome = "the mean over no labels is NaN" if bad else "the loss is 0"
        yield self.find(
            record,
            f"all {labels} labels of the batch are {index}, which "
            f"{facts.function or 'the loss'} ignores: {outcome}",
            subject=site,
            severity=None if bad else Severity.INFO,
            where=facts.locate(rank=record.rank, op=facts.function),
            remedies=[
                "Skip such batches, or use the sum and divide it by the number of labels that "
                "are not ignored, at least 1.",
                "If all batches are affected, check how the labels are masked.",
            ],
            labels=labels,
            ignored=ignored,
            ignore_index=index,
        )
