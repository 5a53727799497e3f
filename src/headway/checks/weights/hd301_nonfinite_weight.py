from __future__ import annotations

import math
from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.checkpoint_tensors import looks_like_mask
from headway.core.facts import LISTED, say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.records import StepRecord, TensorRecord


class NonfiniteWeight(Check):
    """A parameter of the model contains NaN or Inf.

    ## What it checks
    The norm of every measured weight, and every weight of a scan or a checkpoint.

    ## Why it matters
    Training never makes a non-finite weight finite again: every output, loss and gradient that
    depends on it is non-finite from then on. Skipping bad steps then skips all of them, forever.

    ## How it is measured
    `isfinite` on the norm of the weight, or the count of NaN and Inf elements if the tensor itself
    was read. All non-finite weights of a step are one finding; repeats are folded.

    ## False alarms
    An additive attention mask (0 and -Inf, no NaN) that a checkpoint lists among the weights is
    ignored.

    ## What to do
    Go back to the last checkpoint whose tensors are all finite. Before you resume, find the step
    that wrote the value: the first non-finite gradient or loss, an update that is far too large, or
    a bad value in the file that the weights were loaded from.

    ## References
    PyTorch, "Automatic Mixed Precision examples".
    """

    code = "HD301"
    name = "nonfinite-weight"
    severity = Severity.ERROR
    summary = "a parameter contains NaN or Inf"
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
            return  # the sum is finite only if all terms are: one fast test for all of them
        bad = [position for position, norm in column.items() if not math.isfinite(norm)]
        if bad:
            yield self._in_step(record, bad, measured=len(column.values))

    def _in_tensor(self, record: TensorRecord) -> Finding:
        nan, inf = int(record.stats.get("nan", 0)), int(record.stats.get("inf", 0))
        elements = int(record.stats.get("numel", 0))
        among = f" among its {elements} elements" if elements else ""
        return self.find(
            record,
            f"the weight {record.name} contains {nan} NaN and {inf} Inf{among}",
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
            f"{len(bad)} of {measured} measured weights contain NaN or Inf: {say_list(names)}",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=self._remedies(record.step),
            tensors=names[:LISTED],
            tensor_count=len(bad),
            measured=measured,
        )

    @staticmethod
    def _remedies(step: int) -> list[str]:
        return [
            f"Neither training nor skipping steps can repair it: resume from the last checkpoint "
            f"before step {step} whose tensors are all finite.",
            "Find the first non-finite loss or gradient before it: that step wrote the value.",
        ]
