from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import format_shape, loss_call_site, targets_are_not_class_ids
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.records import SetupRecord

CLASSES = ("cross_entropy", "nll_loss")


class LabelOutOfRange(Check):
    """A class id lies outside the head, or is of a type that cannot be one.

    ## What it checks
    The labels given to `cross_entropy` and `nll_loss`, before the call is made.

    ## Why it matters
    On the CPU the call raises. On CUDA it is an assertion inside a kernel, told later and
    elsewhere, after which the process is of no more use.

    ## How it is measured
    Exactly: labels below 0 or not below the number of classes, the ignore index left out. Labels
    of another type than int64 (or uint8) are told where torch refused them.

    ## False alarms
    None known: torch itself refuses these labels.

    ## What to do
    Count the classes again: labels that begin at 1, a class "unknown" of -1 (make it
    `ignore_index`), a head one class too small, a padding id. Labels of a wrong type: `.long()`.

    ## References
    The documentation of `torch.nn.CrossEntropyLoss`.
    """

    code = "HD505"
    name = "label-out-of-range"
    severity = Severity.ERROR
    summary = "class ids outside the head, wrong dtype"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call",))
    explains = ()
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        site = loss_call_site(facts)
        if facts.function not in CLASSES:
            return
        outside = facts.outside
        if outside:
            yield self._outside(record, facts, site, outside)
        elif facts.raised and targets_are_not_class_ids(facts):
            yield self._of_wrong_type(record, facts, site)

    def _outside(
        self, record: SetupRecord, facts: LossCallFacts, site: str, outside: int
    ) -> Finding:
        classes = facts.classes or 0
        values = [int(value) for value in facts.outside_values][:5]
        listed = ", ".join(str(value) for value in values)
        return self.find(
            record,
            f"{outside} of {facts.labels} labels lie outside 0..{classes - 1}, what a "
            f"head of {classes} classes can be asked for: {listed}",
            subject=site,
            where=facts.locate(rank=record.rank, op=facts.function, sample=facts.sample),
            remedies=[
                "Labels must count from 0 to the number of classes - 1: shift labels that begin "
                "at 1, give the head another class, or pass ignore_index for a label that means "
                "nothing."
            ],
            outside=outside,
            outside_values=values,
            labels=facts.labels,
            classes=classes,
        )

    def _of_wrong_type(self, record: SetupRecord, facts: LossCallFacts, site: str) -> Finding:
        target = facts.target
        dtype = target.dtype
        return self.find(
            record,
            f"{facts.function} is given labels of type {dtype} and shape "
            f"{format_shape(target.shape)}, which cannot be class ids",
            subject=site,
            where=facts.locate(rank=record.rank, op=facts.function),
            remedies=["Class ids are int64: labels.long(). Distributions have the logits' shape."],
            dtype=dtype,
            error=facts.error,
        )
