from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NONFINITE_OR_RANK
from headway.core.check import Check, Needs
from headway.core.data_facts import EmptyBatchFacts
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord


class EmptyBatch(Check):
    """A batch holds no samples.

    ## What it checks
    The batches of the loaders, what the model is given while it trains, and what loss functions
    are given: whether there is anything in it.

    ## Why it matters
    A mean over nothing is NaN, and one such batch makes all weights NaN. Where it is a sum, the
    step is made from nothing: momentum and decay move the weights all the same.

    ## How it is measured
    The first axis of the tensor is 0. For a loss function: it was given no element and its result
    is not finite.

    ## False alarms
    A loss over no boxes that is a sum is 0 and harmless. Experts that get no token in a step are
    inside the model and not looked at.

    ## What to do
    Find what filters everything out: a threshold, a mask, a bucket without items, a last batch
    after the split. Skip such a batch before the forward pass, or use `drop_last=True`.

    ## References
    `torch.nn.CrossEntropyLoss` (the mean over no target is NaN), pytorch/pytorch#70348.
    """

    code = "HD504"
    name = "empty-batch"
    severity = Severity.ERROR
    summary = "a batch of zero samples or tokens"
    needs = Needs(kinds=(SetupRecord,), topics=("empty-batch",))
    explains = NONFINITE_OR_RANK
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = EmptyBatchFacts.of(record)
        what = facts.what
        if what is None:
            return
        shape = [int(size) for size in facts.shape][:8]
        of = f" of shape {shape}" if shape else ""
        yield self.find(
            record,
            f"{what} a batch{of} without a single sample",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Find what filters everything out (a threshold, a mask, an empty bucket), and skip "
                "such a batch before the forward pass.",
            ],
            shape=shape,
        )
