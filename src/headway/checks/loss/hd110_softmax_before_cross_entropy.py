from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import loss_call_site
from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.facts import Facts
from headway.core.findings import Finding, Severity
from headway.core.records import Header, SetupRecord


class SoftmaxBeforeCrossEntropy(Check):
    """Probabilities are fed to a cross entropy, which expects logits.

    ## What it checks
    What `cross_entropy` is given: the output of a softmax or a sigmoid, or rows that are
    distributions already.

    ## Why it matters
    `cross_entropy` applies a softmax itself. A second one leaves logits between 0 and 1: with C
    classes the loss cannot fall below ln(e + C - 1) - 1, and the gradients are small. The model
    learns slowly and stays unsure, and nothing looks broken.

    ## How it is measured
    By the graph (softmax or sigmoid right under the loss, through reshapes and clamps) or by the
    values: every row not negative and summing to 1, over at least two classes.

    ## False alarms
    `log_softmax` before it is harmless: a softmax of it gives the same numbers back. Targets that
    are distributions (distillation, label smoothing, mixup) are what they should be.

    ## What to do
    Feed the logits and keep the softmax for inference only. Where the model must give
    probabilities, use `nll_loss(log(p), target)`.

    ## References
    Transformer-GCN-QA#32; the documentation of `torch.nn.CrossEntropyLoss`.
    """

    code = "HD110"
    name = "softmax-before-cross-entropy"
    severity = Severity.ERROR
    summary = "probabilities are fed where logits are expected"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call",))
    explains = NOTHING_LEARNED

    def start(self) -> None:
        self.told: set[str] = set()

    def begin(self, header: Header) -> None:
        self.told = set()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = Facts.of(record)
        site = loss_call_site(facts)
        if facts.text("function") != "cross_entropy" or site in self.told:
            return
        prediction = facts.table("prediction")
        made_by = prediction.text("made_by")
        by_values = prediction.flag("sums_to_one")
        classes = facts.whole("classes") or 0
        if classes < 2 or not (by_values or made_by in ("softmax", "sigmoid")):
            return
        self.told.add(site)
        made_at = prediction.table("made_at")
        seen = (
            f"the output of a {made_by}" if made_by else "rows that are not negative and sum to 1"
        )
        line = made_at.whole("line")
        yield self.find(
            record,
            f"cross_entropy over {classes} classes is given {seen}"
            + (f" (line {line})" if line is not None else "")
            + ": it expects logits and applies a softmax itself",
            subject=site,
            where=facts.where(rank=record.rank, op="cross_entropy"),
            remedies=[
                "Feed the logits: take the softmax or sigmoid out of the model's output and apply "
                "it at inference only.",
            ],
            made_by=made_by,
            low=prediction.number("low"),
            high=prediction.number("high"),
            rows_sum_to_one=by_values,
            classes=classes,
            made_at_file=made_at.text("file"),
            made_at_line=line,
        )
