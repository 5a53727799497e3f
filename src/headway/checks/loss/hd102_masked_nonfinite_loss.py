from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Any

from headway.checks.nonfinite_rows import NonfiniteRowsCheck
from headway.core.check import Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Moment, StepRecord, moment_of, record_at

FIRST, LASTING, SUDDEN = 20, 20, 0.1
"""First losses that show the level; zeros that last; the share of that level just before them."""


class MaskedNonfiniteLoss(NonfiniteRowsCheck):
    """The loss is logged as 0 while the gradient is NaN: a filter hid a non-finite loss.

    ## What it checks
    Logs of other tools: a loss of exactly 0 in the same row as a NaN or infinite gradient norm; a
    loss that drops to exactly 0 from one row to the next and stays there; and NaN steps that a log
    counts and leaves out of its mean.

    ## Why it matters
    Hugging Face's `logging_nan_inf_filter` is on by default. A run whose weights are all NaN then
    shows a loss of 0.0, which looks like a perfect fit. Such a run can continue for days.

    ## How it is measured
    Rows with a non-finite norm form one episode, which ends after two finite norms in a row. It is
    reported, at its first row, if a loss in it is exactly 0. If it lasts to the end of the log, the
    weights are NaN; if the norm becomes finite again, one batch was bad or skipped, which is a
    warning. A loss without a zero so far that is exactly 0 in all rows to the end of the log, at
    least 20, is an error if the last loss before was at least a tenth of the first ones: a model
    that memorises its data passes through small losses. Counted NaN steps are an error if every row
    up to the end has some, otherwise a warning.

    ## False alarms
    A loss that falls to 0 little by little means that the model has memorised its data. A NaN norm
    next to any other loss is HD201. Runs that headway itself records have unfiltered losses and are
    not judged.

    ## What to do
    Scan the last checkpoint: if its weights are NaN, resume from one before the onset. Set
    `logging_nan_inf_filter=False`, and find what made the loss NaN: labels that are all masked, an
    empty batch, fp16 weights. Neither clipping nor a lower learning rate fixes a NaN.

    ## References
    AnswerDotAI/ModernBERT#233; princeton-nlp/SimPO#35; huggingface/trl#6702.
    """

    code = "HD102"
    name = "masked-nonfinite-loss"
    severity = Severity.ERROR
    summary = "loss logged as 0.0 while the gradient norm is NaN: a filter hid it"
    needs = Needs(any_of=("grad_norm", "nan_steps", "loss"))
    explains = ("HD201", "HD101", "HD701")

    def start(self) -> None:
        super().start()
        self.rows = 0
        self.masked = False
        """Whether zeros beside a NaN norm were reported."""
        self.counted: Moment | None = None
        """Where the log first counts NaN steps; their number; whether the latest row has any."""
        self.nan_steps = 0.0
        self.nan_now = False
        self.begun: list[float] = []
        """The first losses."""
        self.last = math.nan
        """The latest loss other than 0."""
        self.dropped: Moment | None = None
        """The first of the zeros that last, and how many there are; how many came before."""
        self.zeros = self.earlier = 0

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        return ()  # no filter stands between a step and its record

    def observe_row(self, record: StepRecord) -> Iterable[Finding]:
        values = record.values
        self._count_nan_steps(record)
        norm, loss = values.get("grad_norm"), values.get("loss")
        if loss is not None:
            self._note_zero(record, loss)
        if norm is None:
            return
        self.rows += 1
        if math.isfinite(norm):
            yield from self.finite_row()
            return
        episode = self.nonfinite_row(record, norm=norm, zeros=0, before=self.rows - 1)
        episode["zeros"] += loss == 0

    def finish(self) -> Iterable[Finding]:
        yield from super().finish()
        yield from self._dropped_to_zero()
        if self.counted is not None:
            lasts = self.nan_now
            yield self.find(
                record_at(self.counted),
                f"{say(self.nan_steps)} steps from here on have a NaN loss"
                + (", up to the last row" if lasts else "")
                + "; the log leaves them out of the mean loss that it shows",
                subject="counted",
                severity=None if lasts else Severity.WARNING,
                remedies=[ORIGIN, SCAN],
                steps=self.nan_steps,
            )
            self.counted = None

    def _note_zero(self, record: StepRecord, loss: float) -> None:
        if loss == 0:
            self.dropped = self.dropped or moment_of(record)
            self.zeros += 1
            return
        self.earlier += self.zeros
        self.dropped, self.zeros, self.last = None, 0, loss
        if len(self.begun) < FIRST:
            self.begun.append(abs(loss))

    def _dropped_to_zero(self) -> Iterable[Finding]:
        if self.dropped is None or self.zeros < LASTING or self.earlier or not self.begun:
            return
        if self.masked or not abs(self.last) >= SUDDEN * median(self.begun):
            return
        yield self.find(
            record_at(self.dropped),
            f"loss is exactly 0 in all {self.zeros} rows to the end of the log; it was "
            f"{say(self.last)} just before: no batch contributes to it any more, or a filter "
            "replaces NaN by 0",
            subject="dropped",
            remedies=[EMPTY, FILTER],
            rows=self.zeros,
            before=self.last,
        )

    def _count_nan_steps(self, record: StepRecord) -> None:
        count = record.values.get("nan_steps")
        if count is None or not math.isfinite(count):
            return
        self.nan_now = count > 0
        if count > 0:
            self.counted = self.counted or moment_of(record)
            self.nan_steps += count

    def report(self, episode: dict[str, Any], *, came_back: bool) -> Iterable[Finding]:
        if not episode["zeros"]:
            return
        self.masked = True
        rows, zeros = episode["rows"], episode["zeros"]
        shown = f"in {zeros} of {rows} rows" if rows > 1 else "in that row"
        message = (
            f"grad_norm is {say(episode['norm'])} from here on and the loss is logged as exactly "
            f"0 {shown}: a filter replaces a NaN loss by 0. "
        )
        if came_back:
            message += "Both are finite again later: one bad batch, or a skipped step"
        else:
            message += "This lasts to the end of the log: the weights are NaN"
        first = [] if episode["before"] else [NOT_THE_RATE]
        yield self.find(
            record_at(episode["at"]),
            message,
            severity=Severity.WARNING if came_back else None,
            remedies=[*first, ORIGIN, FILTER, *([] if came_back else [SCAN])],
            norm=episode["norm"],
            rows=rows,
            zeros=zeros,
            recovered=came_back,
        )


EMPTY = (
    "Look at the labels of the batches from this step on (all masked or ignored?), at a weight "
    "that a schedule sets to 0, and at the accuracy: NaN outputs can give a loss of 0."
)
NOT_THE_RATE = (
    "The first row is already affected, so the learning rate is not the cause: check the labels "
    "(all masked?), the input and the dtype of the weights."
)
ORIGIN = (
    "Find what made the loss NaN: labels that are all masked, an empty batch, trainable weights in "
    "fp16, an op near a singular point. Clipping does not fix a NaN."
)
FILTER = "Set `logging_nan_inf_filter=False` so that the log shows the real loss."
SCAN = (
    "Scan the last checkpoint; if it contains NaN, resume from the last clean one before this step."
)
