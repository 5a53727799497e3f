from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import format_shape, loss_call_site, targets_are_not_class_ids
from headway.core.check import Check, Needs
from headway.core.data_facts import LabelIndexFacts
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.records import SetupRecord

CLASSES = ("cross_entropy", "nll_loss")


class LabelOutOfRange(Check):
    """A class index is outside the range of the head, or has a dtype that cannot be one.

    ## What it checks
    The labels passed to `cross_entropy` and `nll_loss`, before the call.

    ## Why it matters
    On the CPU the call raises an error. On CUDA it is an assertion inside a kernel, which is
    reported later and elsewhere, and after which the process is unusable.

    ## How it is measured
    Exactly: labels below 0 or not below the number of classes, except the ignore index. Labels of
    another dtype than int64 (or uint8) are reported if torch rejected them. A label of -1 that is
    used as an index (`log_probs[arange, labels]`) picks the last class without an error: it is
    reported if that entry gets a gradient.

    ## False alarms
    None known: torch itself rejects these labels. Entries of the label -1 that a mask takes out of
    the loss get no gradient and are not reported.

    ## What to do
    Count the classes again: labels that start at 1, a class "unknown" of -1 (make it
    `ignore_index`), a head with one class too few, a padding id. Labels of a wrong dtype:
    `.long()`.

    ## References
    The documentation of `torch.nn.CrossEntropyLoss`.
    """

    code = "HD505"
    name = "label-out-of-range"
    severity = Severity.ERROR
    summary = "class indices outside the range of the head, or a wrong dtype"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call", "label-index"))
    explains = ("HD911", "HD912")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == LabelIndexFacts.topic:
            yield self._index(record, LabelIndexFacts.of(record))
            return
        facts = LossCallFacts.of(record)
        site = loss_call_site(facts)
        if facts.function not in CLASSES:
            return
        outside = facts.outside
        if outside:
            yield self._outside(record, facts, site, outside)
        elif facts.raised and targets_are_not_class_ids(facts):
            yield self._wrong_dtype(record, facts, site)

    def _outside(
        self, record: SetupRecord, facts: LossCallFacts, site: str, outside: int
    ) -> Finding:
        classes = facts.classes or 0
        values = [int(value) for value in facts.outside_values][:5]
        listed = ", ".join(str(value) for value in values)
        return self.find(
            record,
            f"{outside} of {facts.labels} labels are outside 0..{classes - 1}, the range of a "
            f"head of {classes} classes: {listed}",
            subject=site,
            where=facts.locate(rank=record.rank, op=facts.function, sample=facts.sample),
            remedies=[
                "Labels must range from 0 to the number of classes - 1: shift labels that start "
                "at 1, add a class to the head, or pass ignore_index for a label without meaning."
            ],
            outside=outside,
            outside_values=values,
            labels=facts.labels,
            classes=classes,
        )

    def _index(self, record: SetupRecord, facts: LabelIndexFacts) -> Finding:
        classes = facts.classes or 0
        values = [int(value) for value in facts.outside_values][:5]
        message = (
            f"{facts.outside} of {facts.labels} labels are outside 0..{classes - 1} "
            f"({', '.join(map(str, values))}) and are used as an index"
        )
        if not facts.raised:
            message += f": -1 picks class {classes - 1}, which is trained for these samples"
        place = facts.locate(rank=record.rank, op=facts.function)
        return self.find(
            record,
            message,
            subject=f"{place.file}:{place.line}",
            where=place,
            remedies=[
                "Leave these samples out before the indexing (`labels >= 0`), or use "
                "`cross_entropy(…, ignore_index=-1)`."
            ],
            outside=facts.outside,
            outside_values=values,
            labels=facts.labels,
            classes=classes,
        )

    def _wrong_dtype(self, record: SetupRecord, facts: LossCallFacts, site: str) -> Finding:
        target = facts.target
        dtype = target.dtype
        return self.find(
            record,
            f"{facts.function} receives labels of dtype {dtype} and shape "
            f"{format_shape(target.shape)}, which cannot be class indices",
            subject=site,
            where=facts.locate(rank=record.rank, op=facts.function),
            remedies=[
                "Convert class indices to int64: labels.long(). Distributions must have the "
                "shape of the logits."
            ],
            dtype=dtype,
            error=facts.error,
        )
