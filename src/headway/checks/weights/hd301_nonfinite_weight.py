from __future__ import annotations

import math
from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.checkpoint_tensors import looks_like_mask
from headway.core.facts import LISTED, say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.records import StepRecord, TensorRecord


class NonfiniteWeight(Check):
    """A parameter of the model holds NaN or Inf.

    ## What it checks
    The norm of every weight that was measured, and every weight of a scan or a checkpoint.

    ## Why it matters
    A non-finite weight never becomes finite again by training: each output, loss and gradient
    that it touches is non-finite from then on. Skipping bad steps then skips all of them, for
    ever.

    ## How it is measured
    `isfinite` on the weight's norm, or the count of NaN and Inf elements where the tensor itself
    was looked at. All bad weights of a step are one finding; repeats are folded.

    ## False alarms
    An additive attention mask (0 and -Inf, no NaN) that a checkpoint lists among the weights is
    left alone.

    ## What to do
    Go back to the last checkpoint whose tensors are all finite. Before going on, find the step
    that wrote it: the first non-finite gradient or loss, an update far too large, or a bad value
    in the file the weights were loaded from.

    ## References
    PyTorch, "Automatic Mixed Precision examples".
    """

    code = "HD301"
    name = "nonfinite-weight"
    severity = Severity.ERROR
    summary = "a parameter holds NaN or Inf"
    needs = Needs(
        any_of=("param/weight_norm",),
        kinds=(StepRecord, TensorRecord),
        roles=("weight",),
        nonfinite=True,
    )
    explains = ("HD101", "HD102", "HD201", "HD302", "HD303", "HD408", "HD414", "HD313", "HD602")

    def observe(self, record: StepRecord | TensorRecord) -> Iterable[Finding]:
        if isinstance(record, TensorRecord):
            if record.role == "weight" and record.nonfinite and not looks_like_mask(record):
                yield self._in_tensor(record)
            return
        column = record.columns.get("param/weight_norm")
        if column is None or math.isfinite(sum(column.values)):
            return  # a sum is finite only if all its terms are: one fast look at them all
        bad = [position for position, norm in column.items() if not math.isfinite(norm)]
        if bad:
            yield self._in_step(record, bad, measured=len(column.values))

    def _in_tensor(self, record: TensorRecord) -> Finding:
        nan, inf = int(record.stats.get("nan", 0)), int(record.stats.get("inf", 0))
        elements = int(record.stats.get("numel", 0))
        among = f" among its {elements} elements" if elements else ""
        return self.find(
            record,
            f"the weight {record.name} holds {nan} NaN and {inf} Inf{among}",
            where=Where(module=record.name, rank=record.rank or None),
            remedies=self._remedies(record.step),
            tensors=[record.name],
            nan=nan,
            inf=inf,
            elements=elements or None,
        )

    def _in_step(self, record: StepRecord, bad: list[int], *, measured: int) -> Finding:
        names = [self.context.name("param", position) for position in bad]
        return self.find(
            record,
            f"{len(bad)} of the {measured} weights measured hold NaN or Inf: {say_list(names)}",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=self._remedies(record.step),
            tensors=names[:LISTED],
            tensor_count=len(bad),
            measured=measured,
        )

    @staticmethod
    def _remedies(step: int) -> list[str]:
        return [
            "Training cannot mend it, and skipping steps cannot either: go on from the last "
            f"checkpoint before step {step} whose tensors are all finite.",
            "Find the first non-finite loss or gradient before it: that step wrote it.",
        ]
