from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NONFINITE_OR_RANK
from headway.core.check import Check, Needs
from headway.core.data_facts import EmptyBatchFacts
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord


class EmptyBatch(Check):
    """A batch contains no samples.

    ## What it checks
    The batches of the loaders, the inputs of the model during training, and the inputs of loss
    functions: whether they are empty.

    ## Why it matters
    A mean over nothing is NaN, and one such batch makes all weights NaN. If it is a sum, the step
    has no gradient, but momentum and decay still change the weights.

    ## How it is measured
    The first axis of the tensor is 0. For a loss function: it received no element and its result is
    not finite.

    ## False alarms
    A loss over no boxes that is a sum is 0 and harmless. Experts that get no token in a step are
    inside the model and are not checked.

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
        of = f" (shape {shape})" if shape else ""
        yield self.find(
            record,
            f"{what} an empty batch{of}",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Find what filters everything out (a threshold, a mask, an empty bucket), and skip "
                "such a batch before the forward pass.",
            ],
            shape=shape,
        )
