from __future__ import annotations

import math
from typing import Any

from headway.checks.checkpoint_tensors import looks_like_mask
from headway.checks.symptoms import NONFINITE_STEP
from headway.checks.weights._shared import NonfiniteTensorCheck
from headway.core.check import Needs
from headway.core.findings import Finding, Severity
from headway.core.records import Column, Header, StepRecord, TensorRecord

STATISTICS = ("running_mean", "running_var")
"""Buffers in which an infinity is never intended."""


class NonfiniteBuffer(NonfiniteTensorCheck):
    """A buffer of the model, such as BatchNorm's statistics, contains NaN or Inf.

    ## What it checks
    The norm of every buffer that changes, and every buffer of a scan or a checkpoint.

    ## Why it matters
    Running statistics are written in the forward pass. One bad batch corrupts them even if its
    update is skipped: training looks fine, but every evaluation from then on is NaN.

    ## How it is measured
    A NaN is always reported. An infinity is reported in a running mean or variance, and in a buffer
    that was finite before in this run. All bad buffers of a step are one finding; repeats are
    folded.

    ## False alarms
    Some buffers contain infinities on purpose: attention masks (-Inf), observers that start their
    minimum at +Inf, a best score so far. Such a buffer is ignored as long as it contains no NaN.

    ## What to do
    Restore the buffers from the last good checkpoint, or reset them (`reset_running_stats()`) and
    let them settle over some batches; then find the batch that wrote them. Guarding the optimizer
    step is not enough: restore the buffers of the step before as well.

    ## References
    PyTorch, `torch.nn.BatchNorm2d`, running statistics.
    """

    code = "HD302"
    name = "nonfinite-buffer"
    severity = Severity.ERROR
    summary = "a buffer (BatchNorm statistics) contains NaN or Inf"
    needs = Needs(
        any_of=("buffer/norm",),
        kinds=(StepRecord, TensorRecord),
        roles=("buffer",),
        nonfinite=True,
    )
    explains = (*NONFINITE_STEP, "HD301", "HD303", "HD602")
    yields_to = ("HD301",)

    def start(self) -> None:
        self.finite_once: set[int] = set()

    def begin(self, header: Header) -> None:
        self.finite_once.clear()  # positions change their meaning if the model has changed

    axis = "buffer"
    measured = "buffers"

    def bad_positions(self, column: Column) -> list[int]:
        bad = []
        for position, norm in column.items():
            if math.isfinite(norm):
                self.finite_once.add(position)
            elif math.isnan(norm) or self._turned_infinite(position):
                bad.append(position)
        return bad

    def _turned_infinite(self, position: int) -> bool:
        name = self.context.name("buffer", position)
        return name.endswith(STATISTICS) or (
            position in self.finite_once and "mask" not in name.lower()
        )

    def is_intended(self, record: TensorRecord) -> bool:
        if record.stats.get("nan", 0) or record.name.endswith(STATISTICS):
            return False
        return looks_like_mask(record) or record.stats.get("inf") == record.stats.get("numel")

    def advise(self, step: int) -> list[str]:
        return [
            "Restore the buffers from the last good checkpoint, or reset the statistics "
            "(reset_running_stats()) and let them settle before you evaluate.",
            "Inspect the batch of the step that wrote it: skipping its update does not protect "
            "buffers, which the forward pass writes.",
        ]

    def _in_tensor(self, record: TensorRecord, among: str = "", **more: Any) -> Finding:
        # Infinities without NaN in a buffer that was never finite may be intended: information.
        sure = bool(record.stats.get("nan", 0)) or record.name.endswith(STATISTICS)
        return super()._in_tensor(record, severity=Severity.ERROR if sure else Severity.INFO)
