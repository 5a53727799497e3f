from __future__ import annotations

import math
from typing import Any

from headway.checks.checkpoint_tensors import looks_like_mask
from headway.checks.symptoms import NONFINITE_STEP
from headway.checks.weights._shared import NonfiniteTensorCheck
from headway.core.check import Needs
from headway.core.findings import Finding, Severity
from headway.core.records import Column, StepRecord, TensorRecord


class NonfiniteWeight(NonfiniteTensorCheck):
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
    explains = (*NONFINITE_STEP, "HD302", "HD303", "HD313", "HD408", "HD414", "HD602")

    axis = "param"
    measured = "measured weights"

    def is_intended(self, record: TensorRecord) -> bool:
        return looks_like_mask(record)

    def bad_positions(self, column: Column) -> list[int]:
        if math.isfinite(sum(column.values)):
            return []  # the sum is finite only if all terms are: one fast test for all of them
        return [position for position, norm in column.items() if not math.isfinite(norm)]

    def advise(self, step: int) -> list[str]:
        return [
            f"Neither training nor skipping steps can repair it: resume from the last checkpoint "
            f"before step {step} whose tensors are all finite.",
            "Find the first non-finite loss or gradient before it: that step wrote the value.",
        ]

    def _in_tensor(self, record: TensorRecord, among: str = "", **more: Any) -> Finding:
        elements = int(record.stats.get("numel", 0))
        among = f" among its {elements} elements" if elements else ""
        return super()._in_tensor(record, among, elements=elements or None)
