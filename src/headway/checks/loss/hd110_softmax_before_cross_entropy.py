from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import loss_call_site
from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.records import SetupRecord


class SoftmaxBeforeCrossEntropy(Check):
    """cross_entropy receives probabilities, but it expects logits.

    ## What it checks
    The input of `cross_entropy`: whether it is the output of a softmax or a sigmoid, or its rows
    are already distributions.

    ## Why it matters
    `cross_entropy` applies a softmax itself. A second one leaves logits between 0 and 1: with C
    classes the loss cannot fall below ln(e + C - 1) - 1, and the gradients are small. The model
    learns slowly, its predictions stay uncertain, and no error is raised.

    ## How it is measured
    From the graph (a softmax or sigmoid directly before the loss, through reshapes and clamps) or
    from the values: every row is non-negative and sums to 1, over at least two classes.

    ## False alarms
    `log_softmax` before it is harmless: the softmax of it gives the same numbers. Targets that are
    distributions (distillation, label smoothing, mixup) are correct.

    ## What to do
    Pass the logits and apply the softmax at inference only. If the model must return probabilities,
    use `nll_loss(log(p), target)`.

    ## References
    Transformer-GCN-QA#32; the documentation of `torch.nn.CrossEntropyLoss`.
    """

    code = "HD110"
    name = "softmax-before-cross-entropy"
    severity = Severity.ERROR
    summary = "probabilities are passed where logits are expected"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call",))
    explains = NOTHING_LEARNED
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        site = loss_call_site(facts)
        if facts.function != "cross_entropy":
            return
        prediction = facts.prediction
        made_by = prediction.made_by
        by_values = prediction.sums_to_one
        classes = facts.classes or 0
        if classes < 2 or not (by_values or made_by in ("softmax", "sigmoid")):
            return
        made_at = prediction.made_at
        received = (
            f"the output of a {made_by}" if made_by else "rows that are non-negative and sum to 1"
        )
        line = made_at.line
        yield self.find(
            record,
            f"cross_entropy over {classes} classes receives {received}"
            + (f" (line {line})" if line is not None else "")
            + ", but it expects logits and applies a softmax itself",
            subject=site,
            where=facts.locate(rank=record.rank, op="cross_entropy"),
            remedies=[
                "Pass the logits: remove the softmax or sigmoid from the model's output and "
                "apply it at inference only.",
            ],
            made_by=made_by,
            low=prediction.low,
            high=prediction.high,
            rows_sum_to_one=by_values,
            classes=classes,
            made_at_file=made_at.file,
            made_at_line=line,
        )
