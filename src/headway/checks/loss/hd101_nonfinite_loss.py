from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from headway.checks.nonfinite_rows import NonfiniteRowsCheck
from headway.core.check import Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Moment, StepRecord, moment_of, record_at
from headway.core.signals import Signal


class NonfiniteLoss(NonfiniteRowsCheck):
    """The loss, or one of its named components, is NaN or infinite.

    ## What it checks
    Every loss value for NaN, +Inf and -Inf. A non-finite component alone (the mean over an empty
    selection that is not added to the sum) is not a fault, unless the log has no total loss.

    ## Why it matters
    The gradient of a non-finite loss is non-finite almost everywhere. One optimizer step with it
    destroys the weights and the optimizer state, and every later step is NaN too.

    ## How it is measured
    `isfinite` on the loss of each step. If components are known, the message names the non-finite
    ones, because the total is only their sum. The log of another tool is read to its end first: a
    loss that is finite again later is a warning, and so is a loss that stays NaN while every
    gradient norm next to it is finite. For a mean over N steps, the message says that the NaN
    occurred within those N steps. A validation loss that is NaN to the end of a log while the
    training loss is finite is a warning.

    ## False alarms
    None for a per-step loss. In some loggers (Hugging Face without `logging_nan_inf_filter`) one
    bad batch makes every later mean NaN although the run is fine; finite gradient norms show this
    case. Sources that filter their loss do not feed this check.

    ## What to do
    Find where the non-finite value was produced: an op, the batch, or weights that were already
    non-finite. If the first loss is already non-finite, the learning rate is not the cause: check
    the input, the labels and the initial weights. Skipping the update protects the weights.
    Clipping does not: a NaN norm turns every gradient into NaN.

    ## References
    PyTorch, "Automatic Mixed Precision examples"; `torch.autograd.set_detect_anomaly`.
    """

    code = "HD101"
    name = "nonfinite-loss"
    severity = Severity.ERROR
    summary = "loss is NaN or Inf"
    needs = Needs(any_of=("loss", "loss/*"), nonfinite=True)
    explains = ("HD201", "HD301", "HD302", "HD408", "HD313", "HD414", "HD104", "HD701")
    yields_to = ("HD301", "HD302", "HD408")

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        for name, value in record.family("loss"):
            if math.isfinite(value):
                self.finite_before += 1
                continue
            culprits = _nonfinite_components(record)
            source = f" (component {', '.join(culprits)})" if culprits else ""
            yield self.find(
                record,
                f"{name} is {say(value)}{source}"
                + ("; update skipped, weights unchanged" if record.held else ""),
                subject=name,
                remedies=self._remedies(record),
                value=value,
                components=culprits,
                held=record.held,
                finite_before=self.finite_before,
            )

    def _remedies(self, record: StepRecord) -> list[str]:
        if self.finite_before == 0:
            return [FIRST]
        remedies = [ORIGIN]
        if not record.held:
            remedies.append(
                "The weights were updated with it: resume from the last checkpoint before this "
                "step."
            )
        return remedies

    def start(self) -> None:
        super().start()
        self.evaluations = 0
        """Finite validation losses of a log."""
        self.lost: list[Moment] = []
        """Its non-finite ones since the last finite one: the first and the latest."""
        self.lost_count = 0

    def finish(self) -> Iterable[Finding]:
        trains = self.episode is None and self.finite_before > 0
        yield from super().finish()
        if self.lost_count >= 2 and trains:
            never = "" if self.evaluations else "; it was never finite"
            yield self.find(
                record_at(self.lost[0]),
                f"validation loss is NaN or Inf in all {self.lost_count} evaluations to the end of "
                f"the log, while the training loss stays finite{never}",
                subject="eval/loss",
                severity=Severity.WARNING if self.evaluations else Severity.INFO,
                remedies=[VALIDATION],
                evaluations=self.lost_count,
                finite_before=self.evaluations,
            )

    def _note_evaluation(self, record: StepRecord) -> None:
        losses = [v for name, v in record.values.items() if _EVALUATED.match(name)]
        if not losses:
            return
        if all(map(math.isfinite, losses)):
            self.evaluations += 1
            self.lost, self.lost_count = [], 0
        else:
            self.lost = [*self.lost[:1], moment_of(record)]
            self.lost_count += 1

    def observe_row(self, record: StepRecord) -> Iterable[Finding]:
        """For a log: collect the non-finite rows, and report them once it is clear how they end."""
        self._note_evaluation(record)
        value = record.values.get("loss")
        if value is None and "loss" not in self.context.header.signals:
            parts = [part for key, part in record.values.items() if key.startswith("loss/")]
            value = next((part for part in parts if not math.isfinite(part)), None)
            value = parts[0] if value is None and parts else value
        if value is None:
            return
        if math.isfinite(value):
            yield from self.finite_row()
            return
        norm, bad = record.values.get("grad_norm"), _nonfinite_components(record)
        episode = self.nonfinite_row(record, value=value, components=bad, norms=0, finite_norms=0)
        episode["norms"] += norm is not None
        episode["finite_norms"] += norm is not None and 0 < norm < math.inf

    def report(self, episode: dict[str, Any], *, came_back: bool) -> Iterable[Finding]:
        signal = self.context.header.signals.get("loss", Signal())
        rows, parts = episode["rows"], episode["components"]
        # If each value belongs to one step, its gradient cannot be finite: require two rows.
        enough = 1 if signal.span > 1 else 2
        alive = rows >= enough and episode["finite_norms"] == episode["norms"] == rows
        source = f" (component {', '.join(parts)})" if parts else ""
        within = f", somewhere within the last {signal.span} steps" if signal.span > 1 else ""
        if signal.per_label > 1:
            within = ", somewhere in this epoch"
        message = f"loss is {say(episode['value'])}{source}{within}"
        mild, remedies = True, [ORIGIN]
        if came_back:
            message += f"; it is finite again after {rows} row{'s' * (rows > 1)}"
            remedies.append(
                "The run recovered: the bad batch was skipped or never reached the weights. "
                "Inspect the batches of these steps before you train on them again."
            )
        elif alive:
            message += (
                f" and in all {rows} rows from here on, while every gradient norm is finite: "
                "probably one bad batch that stays in the logger's running mean"
            )
            remedies.append(
                "NaN weights would give NaN gradients, so the weights are probably fine: scan "
                "the last checkpoint to confirm, and inspect the batches of these steps."
            )
        else:
            mild = False
            message += f" and in all {rows} rows to the end of the log" if rows > 1 else ""
            if self.finite_before == 0:
                remedies = [FIRST]
            else:
                remedies.append(
                    "Resume from a checkpoint before this step that `headway scan` reports as "
                    "clean."
                )
        yield self.find(
            record_at(episode["at"]),
            message,
            subject="loss",
            severity=Severity.WARNING if mild else None,
            remedies=remedies,
            value=episode["value"],
            components=parts,
            rows=rows,
            span=signal.span,
            recovered=came_back,
            finite_before=self.finite_before,
        )


_EVALUATED = re.compile(r"eval/(?:.*[/_])?loss$")
"""Validation losses; a detector has several: `eval/box_loss`."""


def _nonfinite_components(record: StepRecord) -> list[str]:
    return [
        key.removeprefix("loss/")
        for key, part in record.values.items()
        if key.startswith("loss/") and not math.isfinite(part)
    ]


FIRST = (
    "The first loss is already non-finite, so the learning rate is not the cause: check the "
    "input, the labels and the initial weights."
)
VALIDATION = (
    "Look for an empty validation batch, a division by a count of 0, half precision in the "
    "evaluation only, or batch-norm statistics that overflowed (`headway scan CHECKPOINT`)."
)
ORIGIN = (
    "Find the op that produced it: log, sqrt, division or exp near a singular point, or an "
    "overflow in half precision."
)
