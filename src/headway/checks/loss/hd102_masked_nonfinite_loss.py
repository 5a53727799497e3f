from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Moment, StepRecord, moment_of, record_at

BACK = 2
"""So many rows in a row with a finite norm, and the run has come back."""


class MaskedNonfiniteLoss(Check):
    """The loss is logged as 0 while the gradient is NaN: a filter hid a non-finite loss.

    ## What it checks
    Logs of other tools: a loss of exactly 0 beside a gradient norm that is NaN or infinite; and
    steps with a NaN loss that a log counts and leaves out of its mean.

    ## Why it matters
    Hugging Face's `logging_nan_inf_filter` is on by default. A run whose weights are all NaN shows
    a loss of 0.0, which looks like a perfect fit; it may train like that for days.

    ## How it is measured
    Rows with a non-finite norm make one episode, from the first of them to two finite ones in a
    row. It is told, at its first row, if a loss in it is exactly 0. If it lasts to the end of the
    log the weights are dead; if the norm comes back, one batch was bad or skipped, which is a
    warning. Counted NaN steps are an error if they are in every row to the end, else a warning.

    ## False alarms
    A loss of 0 with a finite norm is a model that has learned its data by heart. A norm that is NaN
    beside any other loss is another matter (HD201). Runs that headway itself watches have losses
    nobody filtered, and are not judged.

    ## What to do
    Scan the last checkpoint: if its weights are NaN, go on from one before the onset. Set
    `logging_nan_inf_filter=False`, and find what made the loss NaN: labels that are all masked, an
    empty batch, fp16 weights. Neither clipping nor a lower rate cures a NaN.

    ## References
    AnswerDotAI/ModernBERT#233; princeton-nlp/SimPO#35; huggingface/trl#6702.
    """

    code = "HD102"
    name = "masked-nonfinite-loss"
    severity = Severity.ERROR
    summary = "loss logged as 0.0 while the gradient norm is NaN: a filter hid it"
    needs = Needs(any_of=("grad_norm", "nan_steps"))
    explains = ("HD201", "HD101", "HD701")

    def start(self) -> None:
        self.episode: dict[str, Any] | None = None
        self.rows = 0
        self.counted: Moment | None = None
        """Where NaN steps were first counted; how many; and whether the latest row has any."""
        self.nan_steps = 0.0
        self.nan_now = False

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        if not self.context.header.foreign:
            return
        values = record.values
        self._take_count(record)
        norm, loss = values.get("grad_norm"), values.get("loss")
        if norm is None:
            return
        self.rows += 1
        if math.isfinite(norm):
            if self.episode is not None:
                self.episode["good"] += 1
                if self.episode["good"] >= BACK:
                    yield from self._close(came_back=True)
            return
        if self.episode is None:
            before = self.rows - 1
            self.episode = {"at": moment_of(record), "norm": norm, "rows": 0, "zeros": 0}
            self.episode["before"] = before
        self.episode["rows"] += 1
        self.episode["zeros"] += loss == 0
        self.episode["good"] = 0

    def finish(self) -> Iterable[Finding]:
        yield from self._close(came_back=False)
        if self.counted is not None:
            lasts = self.nan_now
            yield self.find(
                record_at(self.counted),
                f"{say(self.nan_steps)} steps had a loss of NaN from here on, and the log leaves "
                "them out of its mean: the losses it shows are those of the others"
                + (", to its last row" if lasts else ""),
                subject="counted",
                severity=None if lasts else Severity.WARNING,
                remedies=[ORIGIN, SCAN],
                steps=self.nan_steps,
            )
            self.counted = None

    def _take_count(self, record: StepRecord) -> None:
        count = record.values.get("nan_steps")
        if count is None or not math.isfinite(count):
            return
        self.nan_now = count > 0
        if count > 0:
            self.counted = self.counted or moment_of(record)
            self.nan_steps += count

    def _close(self, *, came_back: bool) -> Iterable[Finding]:
        episode, self.episode = self.episode, None
        if episode is None or not episode["zeros"]:
            return
        rows, zeros = episode["rows"], episode["zeros"]
        shown = f"in {zeros} of {rows} rows" if rows > 1 else "there"
        said = (
            f"grad_norm is {say(episode['norm'])} from here on, and the loss is logged as exactly "
            f"0 {shown}: a filter shows a NaN loss as 0"
        )
        if came_back:
            said += "; then both were finite again: one bad batch, or a step that was skipped"
        else:
            said += ". It lasts to the end of the log: the weights are NaN"
        first = [] if episode["before"] else [INNOCENT]
        yield self.find(
            record_at(episode["at"]),
            said,
            severity=Severity.WARNING if came_back else None,
            remedies=[*first, ORIGIN, FILTER, *([] if came_back else [SCAN])],
            norm=episode["norm"],
            rows=rows,
            zeros=zeros,
            recovered=came_back,
        )


INNOCENT = (
    "It is so from the first row on, so the learning rate is innocent: look at the labels (all "
    "masked?), the input and the dtype of the weights."
)
ORIGIN = (
    "Find what made the loss NaN: labels that are all masked, an empty batch, trainable weights in "
    "fp16, an op near its singular point. Clipping does not cure a NaN."
)
FILTER = "Set `logging_nan_inf_filter=False`, so that the log shows what the loss really is."
SCAN = "Scan the last checkpoint; if it holds NaN, go on from the last clean one before this step."
